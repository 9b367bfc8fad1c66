"""What the size of capacity steps costs: rounds over larger buffers beside traces for each new capacity.

The demo pair, greedy, a generation from an empty cache for each size of step, with functions compiled anew. Times are
those of the process, so other programs do not count; `OPENBLAS_NUM_THREADS=1` keeps BLAS from spinning.
"""

import time
from dataclasses import dataclass, field

from benchmarks.figures import Figure, parser, report
from mtp_mlx import kv_cache, load, load_drafter
from mtp_mlx.decoding.compiled import CompiledRound
from mtp_mlx.decoding.depth import FixedDepth
from mtp_mlx.decoding.stream import TokenStream

PROMPT = "In the beginning"


@dataclass
class TimedDepth(FixedDepth):
    """Notes how long each round took, apart for those that traced.

    Attributes:
        round: whose traces count.
        usual, traced: seconds of rounds without and with a trace, in their order.
    """

    round: CompiledRound | None = None
    usual: list[float] = field(default_factory=list)
    traced: list[float] = field(default_factory=list)

    def __post_init__(self):
        self._traces, self._started = 0, time.process_time()

    def observe(self, verified: int, accepted: int, drafted: int, seconds: float) -> None:
        now = time.process_time()
        (self.usual if self.round.traces == self._traces else self.traced).append(now - self._started)
        self._traces, self._started = self.round.traces, now


def generation(model, drafter, prompt: list[int], drafts: int, tokens: int) -> TimedDepth:
    round = CompiledRound(model, drafter)
    depth = TimedDepth(drafts, round)
    for _ in TokenStream(round, model.make_cache(), prompt, max_tokens=tokens, depth=depth):
        pass
    return depth


def main() -> None:
    options = parser(__doc__.split("\n")[0])
    options.add_argument("--steps", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048])
    options.add_argument("--tokens", type=int, default=1800)
    options.add_argument("--drafts", type=int, default=3)
    args = options.parse_args()
    model, tokenizer = load("demo")
    drafter, prompt = load_drafter("auto", model), tokenizer.encode(PROMPT)
    generation(model, drafter, prompt, args.drafts, 64)  # compiles MLX's kernels
    figures = []
    for step in args.steps:
        kv_cache.CAPACITY_STEP = step
        timed = generation(model, drafter, prompt, args.drafts, args.tokens)
        total = sum(timed.usual) + sum(timed.traced)
        figures += [
            Figure.of(f"step {step}: generation", [total], "s"),
            Figure.of("  round", [1e3 * seconds for seconds in timed.usual], "ms"),
            Figure.of(f"  {len(timed.traced)} rounds with a trace", [1e3 * seconds for seconds in timed.traced], "ms"),
        ]
    report(figures, args.json, tokens=args.tokens, drafts=args.drafts)


if __name__ == "__main__":
    main()
