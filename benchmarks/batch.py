"""Batches of 1, 2, 4 and 8: plain and MTP, beside mlx-vlm's batched MTP; and what a newcomer costs those who run.

`mtp` is measured as `mtp bench -b` does it; mlx-vlm, in a process of its own, decodes the same groups of prompts right
after. It admits nobody while a batch with a drafter runs (`_next` in its generate/ar.py returns before admission), so
that the newcomer is measured for `mtp` alone.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.engines import MlxVlmBatch
from benchmarks.figures import Figure, parser, report
from benchmarks.worker import Worker
from mtp_mlx import BatchGenerator, load, load_drafter
from mtp_mlx.bench.batch import measure_batches
from mtp_mlx.bench.batch_report import BatchReport, BatchRun
from mtp_mlx.bench.measure import Workload
from mtp_mlx.bench.prompts import read_prompts, select
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.target import Target
from mtp_weights.locate import DEMO_DRAFTER, DEMO_TARGET, bundled_folder, resolve

GOALS = {4: 1.5, 8: 1.2}  # MTP ÷ plain
NEWCOMER = 384  # tokens of its prompt


def own_figures(found: BatchReport) -> list[Figure]:
    figures = []
    for result in found.results:
        for way in ("plain", "mtp"):
            for kind in ("aggregate", "whole", "sequence"):
                figures.append(Figure(f"{way}, {result.rows} rows, {kind}", result.speed(way, kind), "tok/s"))
        for kind in ("aggregate", "whole"):
            goal = GOALS.get(result.rows, 0.97) if kind == "aggregate" else None
            figures.append(
                Figure.of(f"MTP ÷ plain, {result.rows} rows, {kind}", [result.speed_up(kind)], "×", goal=goal)
            )
    one, most = found.results[0], found.results[-1]
    for way, goal in (("plain", None), ("mtp", 3.0)):
        scaled = most.speed(way).median / one.speed(way).median
        figures.append(Figure.of(f"{way}, {most.rows} rows ÷ {one.rows}", [scaled], "×", goal=goal))
    return figures


def peer_figures(found: BatchReport, peers: dict[int, list[BatchRun]]) -> list[Figure]:
    figures = []
    for result in found.results:
        theirs = peers[result.rows]
        pairs = list(zip(result.mtp, theirs, strict=True))
        goal = 1.5 if result.rows > 1 else None
        figures += [
            Figure.of(f"mlx-vlm MTP, {result.rows} rows, whole", (run.whole_tps for run in theirs), "tok/s"),
            Figure.of(
                f"MTP ÷ mlx-vlm MTP, {result.rows} rows, whole",
                (own.whole_tps / other.whole_tps for own, other in pairs),
                "×",
                goal=goal,
            ),
        ]
    return figures


def groups_of(report: BatchReport, rows: int) -> list[list[list[int]]]:
    prompts = [prompt.ids for prompt in report.prompts]
    return [prompts[start : start + rows] for start in range(0, len(prompts), rows)]


def differing(found: BatchReport, peers: dict[int, list[BatchRun]]) -> dict[str, int]:
    """By batch size, how many rows were not what plain decoding of their prompt gives; rounding can decide a tie."""
    counts = {f"mtp, {result.rows} rows": sum(result.different or []) for result in found.results}
    alone = [run.tokens[0] for run in found.results[0].plain]
    for rows, runs in peers.items():
        emitted = [tokens for run in runs for tokens in run.tokens]
        counts[f"mlx-vlm, {rows} rows"] = sum(a != b for a, b in zip(alone, emitted, strict=False))
    return counts


def newcomer(
    model: Target, drafter: Gemma4Assistant, prompts: Sequence[list[int]], long: list[int], step_size: int
) -> tuple[float, float, float]:
    """Seven run and an eighth joins; seconds to its first token, and the longest and the usual pause of the others."""
    generator = BatchGenerator(model, draft_model=drafter, num_draft_tokens=2, admission_step_size=step_size)
    generator.insert(prompts, [400] * len(prompts))
    for _ in range(12 + sum(map(len, prompts)) // step_size):
        generator.next_generated()
    (uid,) = generator.insert([long], [8])
    started = last = time.perf_counter()
    pauses = []
    while True:
        tokens = generator.next_generated()
        now = time.perf_counter()
        pauses.append(now - last)
        last = now
        if any(token.uid == uid for token in tokens):
            break
    undisturbed = []
    for _ in range(10):
        generator.next_generated()
        undisturbed.append(time.perf_counter() - last)
        last = time.perf_counter()
    generator.close()
    return now - started, max(pauses), median(undisturbed)


def newcomer_figures(
    model: Target, drafter: Gemma4Assistant, prompts: Sequence[list[int]], repeats: int
) -> list[Figure]:
    long = ([token for prompt in prompts for token in prompt] * 9)[:NEWCOMER]
    figures = []
    for name, step_size in (("in one piece", NEWCOMER), ("in chunks of 64", 64)):
        runs = [newcomer(model, drafter, prompts[:7], long, step_size) for _ in range(repeats + 1)][1:]
        values = zip(*runs, strict=True)
        for what, seconds in zip(
            ("its first token", "longest pause of the others", "usual round"), values, strict=True
        ):
            figures.append(Figure.of(f"newcomer, {name}: {what}", (1e3 * s for s in seconds), "ms"))
    return figures


def main() -> None:
    options = parser(__doc__.split("\n")[0])
    options.add_argument("--target", default=DEMO_TARGET, help="folder of the target, or demo")
    options.add_argument("--drafter", default=DEMO_DRAFTER, help="folder of the drafter, or demo-drafter")
    options.add_argument("--prompts", type=Path, default=bundled_folder(DEMO_TARGET).parent / "heldout.jsonl")
    options.add_argument("--rows", type=int, nargs="*", default=[1, 2, 4, 8])
    options.add_argument("--tokens", type=int, default=96, help="to emit for each prompt")
    options.add_argument("--drafts", type=int, default=3, help="a round, for mlx-vlm; ours are automatic")
    options.add_argument("--repeats", type=int, default=1)
    options.add_argument("--no-peer", action="store_true", help="leave mlx-vlm out")
    args = options.parse_args()
    model, tokenizer = load(args.target)
    drafter = load_drafter(args.drafter, model)
    chosen = select(read_prompts(args.prompts), -(-max(args.rows) // 4))
    workloads = [Workload(prompt.category, prompt.text, prompt.ids(tokenizer)) for prompt in chosen]
    with ExitStack() as stack:
        folders = resolve(args.target), resolve(args.drafter)
        peer = None if args.no_peer else stack.enter_context(Worker(MlxVlmBatch, *folders, run=MlxVlmBatch.batch))
        found = measure_batches(
            model, drafter, workloads, args.rows, num_tokens=args.tokens, repeats=args.repeats, progress=_show
        )
        peers = {} if peer is None else _peer_runs(peer, found, args)
    prompts = [prompt.ids for prompt in found.prompts]
    figures = own_figures(found) + (peer_figures(found, peers) if peers else [])
    figures += newcomer_figures(model, drafter, prompts, args.repeats + 1)
    different = differing(found, peers)
    if not args.json:
        print(f"rows with an output other than plain decoding's of the prompt alone: {different}")
        for result in found.results:
            print(f"accepted, {result.rows} rows, by prompt: {[round(share, 2) for share in result.acceptance]}")
    report(figures, args.json, different_outputs=different, batches=found.to_dict())


def _peer_runs(peer: Worker, found: BatchReport, args) -> dict[int, list[BatchRun]]:
    runs = {}
    for rows in args.rows:
        groups = groups_of(found, rows)
        peer.run(groups[0], args.tokens, args.drafts)  # once for nothing
        runs[rows] = [peer.run(group, args.tokens, args.drafts) for _ in range(args.repeats) for group in groups]
    return runs


def _show(done: int, total: int) -> None:
    print(f"\r{done}/{total} ", end="" if done < total else "\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
