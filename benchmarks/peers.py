"""Decoding and prefill beside mlx-lm and mlx-vlm: same weights, prompts, drafts and numbers of tokens, interleaved.

Every engine sits in a process of its own, loaded and warm, and waits while another one runs. A prompt goes through all
ways of decoding one after the other, in rotating order, so that drifts of the machine hit all of them.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

from benchmarks.engines import MlxLm, MlxVlm, Ours
from benchmarks.figures import Figure, parser, ratio, report
from benchmarks.worker import Worker
from mtp_mlx.bench.prompts import read_prompts, select
from mtp_mlx.bench.runs import Run
from mtp_mlx.bench.spread import Spread
from mtp_mlx.load import load_tokenizer
from mtp_weights.locate import DEMO_DRAFTER, DEMO_TARGET, bundled_folder, resolve

PLAIN, MTP, AUTO = "mtp-mlx plain", "mtp-mlx MTP", "mtp-mlx MTP auto"
MLX_LM, VLM_PLAIN, VLM_MTP = "mlx-lm plain", "mlx-vlm plain", "mlx-vlm MTP"
PREFILL_TOKENS = 2  # emitted after a long prompt: the time up to the first is of interest


@dataclass
class Prompt:
    """A prompt, and the runs of each way on it."""

    category: str
    ids: list[int]
    runs: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))

    def tps(self, way: str) -> float:
        return median(run.decode_tps for run in self.runs[way])

    def prefill_tps(self, way: str) -> float:
        return len(self.ids) / median(run.prefill_seconds for run in self.runs[way])


class Ways:
    """The ways of decoding that are compared, as (engine, drafts)."""

    def __init__(self, stack: ExitStack, target: Path, drafter: Path, drafts: int):
        ours = stack.enter_context(Worker(Ours, target, drafter))
        mlx_lm = stack.enter_context(Worker(MlxLm, target))
        mlx_vlm = stack.enter_context(Worker(MlxVlm, target, drafter))
        self.engines = [ours.name, mlx_lm.name, mlx_vlm.name]
        self.plain = {PLAIN: (ours, 0), MLX_LM: (mlx_lm, 0), VLM_PLAIN: (mlx_vlm, 0)}
        self.all = {**self.plain, MTP: (ours, drafts), AUTO: (ours, "auto"), VLM_MTP: (mlx_vlm, drafts)}


def run_interleaved(ways: dict, prompts: Sequence[Prompt], num_tokens: int, repeats: int) -> None:
    """Fills `prompts[…].runs`, after a run of each way that is not counted."""
    for worker, drafts in ways.values():
        worker.run(prompts[0].ids, num_tokens, drafts)
    turn = 0
    for repeat in range(repeats):
        for n, prompt in enumerate(prompts, 1):
            names = list(ways)
            start = turn % len(names)
            for name in names[start:] + names[:start]:
                worker, drafts = ways[name]
                prompt.runs[name].append(worker.run(prompt.ids, num_tokens, drafts))
            turn += 1
            print(f"\rrepeat {repeat + 1}/{repeats}, prompt {n}/{len(prompts)} ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def speed_ratio(name: str, prompts: Sequence[Prompt], ahead: str, behind: str, goal: float | None = None) -> Figure:
    """Speed of one way ÷ that of another: the mean over categories of their prompts' median, quartiles over prompts."""
    by_category = defaultdict(list)
    for prompt in prompts:
        by_category[prompt.category].append(prompt.tps(ahead) / prompt.tps(behind))
    quartiles = Spread.of(value for values in by_category.values() for value in values)
    center = mean(median(values) for values in by_category.values())
    return Figure(name, Spread(center, quartiles.lower, quartiles.upper), "×", goal)


def decode_figures(prompts: Sequence[Prompt], ways: Iterable[str]) -> list[Figure]:
    speeds = [Figure.of(way, (prompt.tps(way) for prompt in prompts), "tok/s") for way in ways]
    lengths = [
        Figure.of(f"{way}: mean acceptance length", _acceptance_lengths(prompts, way), "tokens")
        for way in (MTP, AUTO, VLM_MTP)
    ]
    ratios = [
        speed_ratio("MTP ÷ mlx-vlm MTP", prompts, MTP, VLM_MTP, 1.8),
        speed_ratio("MTP auto ÷ mlx-lm plain", prompts, AUTO, MLX_LM, 2.2),
        speed_ratio("plain ÷ mlx-lm plain", prompts, PLAIN, MLX_LM, 1.3),
        speed_ratio("MTP ÷ plain", prompts, MTP, PLAIN),
        speed_ratio("MTP auto ÷ plain", prompts, AUTO, PLAIN),
        speed_ratio("mlx-vlm MTP ÷ mlx-vlm plain", prompts, VLM_MTP, VLM_PLAIN),
        speed_ratio("mlx-vlm MTP ÷ mlx-lm plain", prompts, VLM_MTP, MLX_LM),
    ]
    for category in dict.fromkeys(prompt.category for prompt in prompts):
        own = [prompt for prompt in prompts if prompt.category == category]
        ratios.append(speed_ratio(f"MTP auto ÷ mlx-lm plain, {category}", own, AUTO, MLX_LM))
    return [*speeds, *lengths, *ratios]


def prefill_figures(prompt: Prompt, ways: Iterable[str]) -> list[Figure]:
    def of_runs(way: str) -> list[float]:
        return [len(prompt.ids) / run.prefill_seconds for run in prompt.runs[way]]

    size = len(prompt.ids)
    speeds = [Figure.of(f"{way}: prefill of {size} tokens", of_runs(way), "tok/s") for way in ways]
    return [*speeds, ratio("prefill ÷ mlx-lm's", of_runs(PLAIN), of_runs(MLX_LM), 1.0)]


def differing(prompts: Sequence[Prompt]) -> dict[str, int]:
    """For each way, on how many prompts it did not emit what ours emits plainly (rounding can flip a tie)."""
    counts = {}
    for way in prompts[0].runs:
        counts[way] = sum(prompt.runs[way][0].tokens != prompt.runs[PLAIN][0].tokens for prompt in prompts)
    return counts


def _acceptance_lengths(prompts: Sequence[Prompt], way: str) -> list[float]:
    return [run.speculation.mean_acceptance_length for prompt in prompts for run in prompt.runs[way]]


def _long_prompt(ids: Iterable[list[int]], size: int) -> Prompt:
    joined = [token for each in ids for token in each]
    return Prompt("long", (joined * (1 + size // len(joined)))[:size])


def main() -> None:
    options = parser(__doc__.split("\n")[0])
    options.add_argument("--target", default=DEMO_TARGET, help="folder of the target, or demo")
    options.add_argument("--drafter", default=DEMO_DRAFTER, help="folder of the drafter, or demo-drafter")
    options.add_argument("--prompts", type=Path, default=bundled_folder(DEMO_TARGET).parent / "heldout.jsonl")
    options.add_argument("--limit", type=int, default=3, help="prompts of each category")
    options.add_argument("--tokens", type=int, default=128, help="to emit for each prompt")
    options.add_argument("--drafts", type=int, default=3, help="a round, for both MTPs")
    options.add_argument("--repeats", type=int, default=3, help="runs of each prompt and way")
    options.add_argument("--prompt-size", type=int, default=2048, help="tokens of the prompt that measures prefill")
    args = options.parse_args()
    target, drafter = resolve(args.target), resolve(args.drafter)
    tokenizer = load_tokenizer(target, set())
    everything = read_prompts(args.prompts)
    prompts = [Prompt(p.category, p.ids(tokenizer)) for p in select(everything, args.limit)]
    long = _long_prompt((p.ids(tokenizer) for p in everything), args.prompt_size)
    with ExitStack() as stack:
        ways = Ways(stack, target, drafter, args.drafts)
        run_interleaved(ways.plain, [long], PREFILL_TOKENS, 2 * args.repeats + 1)
        run_interleaved(ways.all, prompts, args.tokens, args.repeats)
    figures = decode_figures(prompts, ways.all) + prefill_figures(long, ways.plain)
    different = differing(prompts)
    if not args.json:
        print(f"{', '.join(ways.engines)}; {len(prompts)} prompts, {args.tokens} tokens, {args.drafts} drafts")
        print(f"prompts with an output other than {PLAIN}'s: {different}")
    details = [
        {
            "category": prompt.category,
            "prompt_tokens": len(prompt.ids),
            "tps": {way: prompt.tps(way) for way in ways.all},
        }
        for prompt in prompts
    ]
    report(figures, args.json, engines=ways.engines, different_outputs=different, prompts=details)


if __name__ == "__main__":
    main()
