"""What the round costs, with a drafter that is right as often as a script says: a random target of 150 M parameters.

- Speed-up at a scripted acceptance, as a share of the ideal: mean acceptance length ÷ cost of a (k+1)-row forward.
- A drafter that is always wrong: automatic depth ÷ plain decoding, alone and in batches.
- Plain decoding ÷ mlx-lm's, each in a process of its own.

The drafter knows the target's continuation and costs nothing, so that what is lost is lost in the round.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from benchmarks.engines import MlxLm, Ours
from benchmarks.figures import Figure, parser, report
from benchmarks.worker import Worker, timed, warm_run
from mtp_mlx import BatchGenerator
from mtp_mlx.bench.runs import Run
from mtp_mlx.decoding.compiled import round_for
from mtp_mlx.decoding.depth import AutoDepth, FixedDepth
from mtp_mlx.decoding.drafts import Drafts
from mtp_mlx.decoding.prefill import prefill
from mtp_mlx.decoding.round import State
from mtp_mlx.decoding.stream import TokenStream
from mtp_mlx.load import load_model
from mtp_mlx.models.config import FULL, SLIDING
from mtp_mlx.models.target import Target
from mtp_mlx.speculation import Speculation
from tests import tiny

ACCEPTANCES = (0.6, 0.8)
PROMPT = list(range(200, 240))
WARM_UP = 16  # tokens


class Scripted:
    """An engine over one target and one scripted drafter; automatic depth begins knowing nothing in each generation."""

    name = "mtp-mlx, scripted"

    def __init__(self, model: Target, drafter: nn.Module | None):
        self.model, self.drafter = model, drafter
        self.speculation = Speculation()

    @property
    def traces(self) -> int:
        return round_for(self.model, self.drafter).traces

    def tokens(self, prompt: list[int], num_tokens: int, drafts: int | str) -> Iterator[int]:
        depth = AutoDepth() if drafts == "auto" else FixedDepth(drafts)
        round = round_for(self.model, self.drafter)
        for emitted in TokenStream(round, self.model.make_cache(), prompt, max_tokens=num_tokens, depth=depth):
            self.speculation = emitted.speculation
            yield emitted.token


class Forwards:
    """Times single compiled forward passes over the same cache."""

    def __init__(self, model: Target):
        self.round, self.cache = round_for(model, None), model.make_cache()
        hidden = prefill(model, mx.array([PROMPT]), self.cache)
        self.token = self.round.first(self.cache, hidden, PROMPT, None).token
        mx.eval(self.token, self.cache.arrays)

    def seconds(self, rows: int) -> float:
        self.cache.set_length(len(PROMPT))
        self.cache.reserve(rows)
        state = State(self.token, None, Drafts(mx.broadcast_to(self.token, (1, rows - 1))))
        mx.eval(state.drafts.tokens)
        started = time.perf_counter()
        outcome, _ = self.round.verify(self.cache, state)
        outcome.read()
        return time.perf_counter() - started

    def cost(self, rows: int, repeats: int) -> float:
        """Median time of `rows` rows ÷ that of one row, measured in turns."""
        pairs = [(self.seconds(rows), self.seconds(1)) for _ in range(repeats + 1)][1:]  # the first one compiles
        many, one = (median(times) for times in zip(*pairs, strict=True))
        return many / one


def target_config(layers: int, hidden: int, vocabulary: int) -> tiny.Config:
    return tiny.target_config(
        "31b",
        attention_k_eq_v=False,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        vocab_size=vocabulary,
        num_attention_heads=hidden // 64,
        head_dim=64,
        global_head_dim=128,
        sliding_window=512,
        layer_types=[FULL if i % 6 == 5 else SLIDING for i in range(layers)],
    )


def plain_beside_mlx_lm(folder: Path, num_tokens: int, repeats: int) -> Figure:
    with ExitStack() as stack:
        ours = stack.enter_context(Worker(Ours, folder, None))
        mlx_lm = stack.enter_context(Worker(MlxLm, folder))
        pairs = [(ours.run(PROMPT, num_tokens), mlx_lm.run(PROMPT, num_tokens)) for _ in range(repeats + 1)][1:]
    return Figure.of("plain ÷ mlx-lm plain", (a.decode_tps / b.decode_tps for a, b in pairs), "×", goal=1.0)


def share_of_ideal(
    model: Target, script: list[int], acceptance: float, num_tokens: int, drafts: int, repeats: int
) -> list[Figure]:
    """Speed-up and its share of the ideal, each from one plain run, one scripted run and forwards around them."""
    right = np.random.default_rng(0).random(len(script)) < acceptance
    scripted = Scripted(model, tiny.ScriptedDrafter(script, (~right).tolist(), model.config.vocab_size))
    plain, forwards = Scripted(model, None), Forwards(model)
    warm_run(plain, PROMPT, num_tokens, 0), warm_run(scripted, PROMPT, num_tokens, drafts)
    speed_ups, shares, lengths = [], [], []
    for _ in range(repeats):
        cost = forwards.cost(drafts + 1, repeats=10)
        runs = timed(plain, PROMPT, num_tokens, 0), timed(scripted, PROMPT, num_tokens, drafts)
        _warn_if_different(*runs, script)
        speed_ups.append(runs[1].decode_tps / runs[0].decode_tps)
        lengths.append(_emitted_a_round(runs[1]))
        shares.append(speed_ups[-1] * cost / lengths[-1])
    name = f"acceptance {acceptance}, {drafts} drafts"
    return [
        Figure.of(f"{name}: tokens a round", lengths, "tokens"),
        Figure.of(f"{name}: MTP ÷ plain", speed_ups, "×"),
        Figure.of(f"{name}: share of the ideal", shares, "×", goal=0.9),
    ]


def always_wrong(model: Target, script: list[int], num_tokens: int, repeats: int) -> list[Figure]:
    wrong = Scripted(model, tiny.ScriptedDrafter(script, True, model.config.vocab_size))
    plain = Scripted(model, None)
    timed(plain, PROMPT, WARM_UP, 0), timed(wrong, PROMPT, WARM_UP, "auto")
    ratios, drafted = [], []
    for _ in range(repeats):
        runs = timed(plain, PROMPT, num_tokens, 0), timed(wrong, PROMPT, num_tokens, "auto")
        _warn_if_different(*runs, script)
        ratios.append(runs[1].decode_tps / runs[0].decode_tps)
        drafted.append(runs[1].speculation.drafted)
    return [
        Figure.of(f"always wrong, auto ÷ plain, {num_tokens} tokens", ratios, "×", goal=0.97),
        Figure.of("always wrong: drafts verified", drafted, "tokens"),
    ]


def always_wrong_in_batches(
    model: Target, script: list[int], sizes: Sequence[int], num_tokens: int, repeats: int
) -> list[Figure]:
    """The same with several rows: one depth for all of them, learned from nothing in each run."""
    wrong = tiny.ScriptedDrafter(script, True, model.config.vocab_size)
    figures = []
    for rows in sizes:
        batch_seconds(model, None, rows, WARM_UP), batch_seconds(model, wrong, rows, 2 * WARM_UP)
        ratios = []
        for _ in range(repeats):
            plain = batch_seconds(model, None, rows, num_tokens)
            ratios.append(plain / batch_seconds(model, wrong, rows, num_tokens))
        name = f"always wrong, {rows} rows, auto ÷ plain, {num_tokens} tokens"
        figures.append(Figure.of(name, ratios, "×", goal=0.97))
    return figures


def batch_seconds(model: Target, drafter: nn.Module | None, rows: int, num_tokens: int) -> float:
    """From the first round to the last of rows that all decode the same."""
    round_for(model, drafter).depths.clear()
    generator = BatchGenerator(model, draft_model=drafter, prefill_step_size=rows * len(PROMPT))
    generator.insert([PROMPT] * rows, [num_tokens] * rows)
    generator.next_generated()
    started = time.perf_counter()
    while generator.next_generated():
        pass
    return time.perf_counter() - started


def _emitted_a_round(run: Run) -> float:
    """Without the first token, which prefill chooses; `num_tokens` cuts the last round."""
    return (len(run.tokens) - 1) / run.speculation.rounds


def _warn_if_different(plain: Run, scripted: Run, script: Sequence[int]) -> None:
    """A tie that rounding decided otherwise makes the script worthless from there on."""
    if not plain.tokens == scripted.tokens == script[len(PROMPT) :][: len(plain.tokens)]:
        print("the outputs differ: the figures from here on are not those of the script", file=sys.stderr)


def main() -> None:
    options = parser(__doc__.split("\n")[0])
    options.add_argument("--layers", type=int, default=12)
    options.add_argument("--hidden", type=int, default=768)
    options.add_argument("--vocabulary", type=int, default=24_576)
    options.add_argument("--drafts", type=int, default=3, help="a round")
    options.add_argument("--tokens", type=int, default=64, help="to emit in each run")
    options.add_argument("--wrong-tokens", type=int, default=512, help="to emit with the drafter that is always wrong")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--wrong-repeats", type=int, default=1, help="repeats with the drafter that is always wrong")
    options.add_argument(
        "--rows", type=int, nargs="*", default=[4, 8], help="batches with the one that is always wrong"
    )
    options.add_argument("--row-tokens", type=int, default=160, help="to emit in each of their rows")
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        config = target_config(args.layers, args.hidden, args.vocabulary)
        folder = tiny.write_target(Path(parent) / "target", config)
        figures = [plain_beside_mlx_lm(folder, args.tokens, args.repeats)]
        model, _ = load_model(folder)
    longest = max(args.tokens, args.wrong_tokens)
    script = PROMPT + list(Scripted(model, None).tokens(PROMPT, longest, 0))
    cost = Figure.of(
        f"cost of {args.drafts + 1} rows ÷ 1 row",
        (Forwards(model).cost(args.drafts + 1, repeats=10) for _ in range(args.repeats)),
        "×",
    )
    figures.append(cost)
    for acceptance in ACCEPTANCES:
        figures += share_of_ideal(model, script, acceptance, args.tokens, args.drafts, args.repeats)
    figures += always_wrong(model, script, args.wrong_tokens, args.wrong_repeats)
    figures += always_wrong_in_batches(model, script, args.rows, args.row_tokens, args.wrong_repeats)
    parameters = sum(array.size for _, array in tree_flatten(model.parameters()))
    report(figures, args.json, parameters=parameters)
    if not args.json:
        print(f"target: {parameters / 1e6:.0f} M random parameters")


if __name__ == "__main__":
    main()
