"""What rows cost in a mixture of experts: one layer's experts at 26B-A4B's shapes, with random weights.

128 experts, 8 chosen, 2816 × 704. Each row chooses its experts at random, evenly: neighbouring tokens of real text
share more, so these are upper bounds. Rows are given to the experts as the model does it (`SwitchGLU`, which sorts them
by expert from 64 choices on), always sorted, and never sorted.

The table says what the costs come to for the whole model at a batch: E[tokens a round] · cost(B rows) ÷ cost(B·(k+1)
rows), with the best k up to 8. Every other part of the model is taken as dense: `--dense-slope` of its one-row time for
each further row, and `--expert-share` of a one-row step spent in the experts.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import SwitchGLU

from benchmarks.figures import Figure, parser, report

EXPERTS, CHOSEN, HIDDEN, INTERMEDIATE = 128, 8, 2816, 704
ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40)
BATCHES, ACCEPTANCES, MOST_DRAFTS = (1, 4, 8), (0.5, 0.7, 0.9), 8


class GeGLU(nn.Module):
    def __call__(self, x: mx.array, gate: mx.array) -> mx.array:
        return nn.gelu_approx(gate) * x


def layer(bits: int | None) -> SwitchGLU:
    """The experts, in float32 or quantized in groups of 64."""
    experts = SwitchGLU(HIDDEN, INTERMEDIATE, EXPERTS, activation=GeGLU())
    if bits is not None:
        nn.quantize(experts, group_size=64, bits=bits)
    mx.eval(experts.parameters())
    return experts


def apply(experts: SwitchGLU, x: mx.array, ids: mx.array, *, sort: bool) -> mx.array:
    """The same as calling `experts`, with the rows sorted by expert or not."""
    rows, choices = mx.repeat(x, CHOSEN, axis=0)[:, None], ids.flatten()
    if sort:
        order = mx.argsort(choices)
        rows, choices = rows[order], choices[order]
    up = experts.up_proj(rows, choices, sorted_indices=sort)
    gate = experts.gate_proj(rows, choices, sorted_indices=sort)
    out = experts.down_proj(experts.activation(up, gate), choices, sorted_indices=sort)
    return (out[mx.argsort(order)] if sort else out).reshape(*ids.shape, -1)


def inputs(rows: int, seed: int) -> tuple[mx.array, mx.array]:
    """Hidden states [rows, D] and the ids [rows, 8] of their experts."""
    keys = mx.random.split(mx.random.key(seed))
    scores = mx.random.uniform(shape=(rows, EXPERTS), key=keys[0])
    return mx.random.normal((rows, HIDDEN), key=keys[1]), mx.argpartition(scores, EXPERTS - CHOSEN, axis=-1)[
        :, -CHOSEN:
    ]


def seconds(call: Callable[[mx.array, mx.array], mx.array], rows: int, repeats: int) -> list[float]:
    times = []
    for seed in range(repeats + 1):
        x, ids = inputs(rows, seed)
        mx.eval(x, ids)
        started = time.perf_counter()
        mx.eval(call(x, ids))
        times.append(time.perf_counter() - started)
    return times[1:]


def distinct(rows: int) -> float:
    """Experts that so many rows choose together, on average."""
    return EXPERTS * (1 - (1 - CHOSEN / EXPERTS) ** rows)


def interpolated(costs: dict[int, float], rows: int) -> float:
    """The cost of a number of rows between those that were measured, or beyond the last at its slope."""
    known = sorted(costs)
    above = next((n for n in known if n >= rows), known[-1])
    below = max((n for n in known if n < above), default=above)
    if above == below:
        return costs[above]
    return costs[below] + (costs[above] - costs[below]) * (rows - below) / (above - below)


def prediction(
    cost: Callable[[int], float], batch: int, acceptance: float, dense_slope: float, expert_share: float
) -> tuple[float, int]:
    """MTP ÷ plain at the best number of drafts, and that number; `cost` of the experts by rows, in those of one."""

    def step(rows: int) -> float:
        return expert_share * cost(rows) + (1 - expert_share) * (1 + dense_slope * (rows - 1))

    def gain(drafts: int) -> float:
        tokens = sum(acceptance**n for n in range(drafts + 1))
        return tokens * step(batch) / step(batch * (drafts + 1))

    best = max(range(MOST_DRAFTS + 1), key=gain)
    return gain(best), best


def show_predictions(title: str, cost: Callable[[int], float], dense_slope: float, expert_share: float) -> list[dict]:
    print(f"\n{title}: MTP ÷ plain (drafts a round)")
    print("batch  " + "  ".join(f"acceptance {acceptance}" for acceptance in ACCEPTANCES))
    found = []
    for batch in BATCHES:
        cells = [prediction(cost, batch, acceptance, dense_slope, expert_share) for acceptance in ACCEPTANCES]
        found += [
            {"batch": batch, "acceptance": acceptance, "speed_up": gain, "drafts": drafts}
            for acceptance, (gain, drafts) in zip(ACCEPTANCES, cells, strict=True)
        ]
        print(f"{batch:>5}  " + "  ".join(f"{f'{gain:.2f}× ({drafts})':>14}" for gain, drafts in cells))
    return found


def measure(bits: int | None, rows: Sequence[int], repeats: int) -> tuple[list[Figure], dict[int, float]]:
    """Figures, and the cost by rows in those of one, the best way."""
    experts, name = layer(bits), "float32" if bits is None else f"{bits}-bit"
    ways = {
        "as the model": experts,
        "sorted": lambda x, ids: apply(experts, x, ids, sort=True),
        "unsorted": lambda x, ids: apply(experts, x, ids, sort=False),
    }
    figures, costs = [], {}
    for count in rows:
        times = {way: seconds(call, count, repeats) for way, call in ways.items()}
        costs[count] = min(median(each) for each in times.values())
        figures += [
            Figure.of(f"{name}, {count} rows, {way}", (1e3 * t for t in each), "ms") for way, each in times.items()
        ]
    return figures, {count: cost / costs[rows[0]] for count, cost in costs.items()}


def main() -> None:
    options = parser(__doc__.split("\n")[0])
    options.add_argument("--bits", type=int, nargs="*", default=[4, 32], help="of the weights, 32 for float32")
    options.add_argument("--rows", type=int, nargs="*", default=ROWS)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--dense-slope", type=float, default=0.02, help="cost of a further row in the dense parts")
    options.add_argument("--expert-share", type=float, default=0.6, help="share of a one-row step spent in the experts")
    args = options.parse_args()
    figures, costs = [], {}
    for bits in args.bits:
        measured, costs[bits] = measure(None if bits == 32 else bits, args.rows, args.repeats)
        figures += measured
        mx.clear_cache()  # the layer is gone: 3 GB in float32
    report(figures, args.json, relative_costs=costs)
    if args.json:
        return
    assumed = args.dense_slope, args.expert_share
    for bits, cost in costs.items():
        show_predictions(f"measured here, {bits} bits", lambda rows, cost=cost: interpolated(cost, rows), *assumed)
    show_predictions(
        "by bytes read (experts that are chosen by some row)", lambda rows: distinct(rows) / CHOSEN, *assumed
    )


if __name__ == "__main__":
    main()
