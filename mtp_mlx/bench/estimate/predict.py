"""Puts the parts together: seconds of a plain step and of a round with k drafts, and what that gives."""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx

from mtp_mlx.bench.estimate.parts import PART_BYTES, drafter_part, target_parts, together
from mtp_mlx.bench.estimate.timing import Timer
from mtp_mlx.bench.machine import Machine, this_machine
from mtp_mlx.bench.spread import Spread
from mtp_mlx.load import choose_threads
from mtp_mlx.memory import ITEM_BYTES, estimated_bytes
from mtp_mlx.models.registry import drafter_config, new_target, target_config
from mtp_mlx.pairing import check_pair
from mtp_weights.recipe import Recipe

ROWS = (1, 2, 3, 4, 5, 7, 9)  # of a pass over the target; in between, times are taken to lie on a line
STEPS = (1, 4)  # of the drafter: each further one costs the same
DEPTHS = (1, 2, 3, 4, 6, 8)
ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)  # the chance that a draft is accepted when those before it were

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Estimate:
    """What to expect of a pair.

    Attributes:
        name: of the target.
        quantization: of the target in words.
        context: tokens that came before.
        weight_bytes: of target and drafter as they would be loaded.
        plain_seconds: a plain step.
        round_seconds: a round, by its number of drafts; empty without a drafter.
        largest_part: bytes of weights that were in memory at a time.
    """

    name: str
    quantization: str
    context: int
    weight_bytes: int
    machine: Machine
    plain_seconds: Spread
    round_seconds: dict[int, Spread]
    largest_part: int

    @property
    def plain_tps(self) -> Spread:
        """Tokens a second; the bounds are those of the slower and the faster quartile of every part."""
        seconds = self.plain_seconds
        return Spread(1 / seconds.median, 1 / seconds.upper, 1 / seconds.lower)

    def cost(self, drafts: int) -> float:
        """A round in plain steps."""
        return self.round_seconds[drafts].median / self.plain_seconds.median

    def speed_up(self, drafts: int, acceptance: float) -> float:
        """Over plain decoding, where each draft is accepted with this chance once those before it were."""
        return expected_tokens(drafts, acceptance) / self.cost(drafts)

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "plain_tps": asdict(self.plain_tps),
            "round_cost": {k: self.cost(k) for k in self.round_seconds},
            "speed_up": {a: {k: self.speed_up(k, a) for k in self.round_seconds} for a in ACCEPTANCES},
        }


def expected_tokens(drafts: int, acceptance: float) -> float:
    """Tokens of a round, the bonus token included: 1 + a + a² + …"""
    return sum(acceptance**n for n in range(drafts + 1))


def estimate(
    name: str,
    target: dict[str, Any],
    drafter: dict[str, Any] | None,
    recipe: Recipe | None = None,
    context: int = 512,
    progress: Progress | None = None,
) -> Estimate:
    """Measures the parts of a pair on this machine, one at a time, and adds them up.

    Args:
        target, drafter: config.json of each.
        recipe: how the target is quantized; None for 16 bits (on a CPU, 32). The drafter never is.
        context: tokens in the key-value store.
        progress: called with (parts done, parts in all).

    Raises:
        UserError: the configurations are not those of a known kind of target and a drafter of it.
    """
    config = target_config(target)
    if drafter is not None:
        check_pair(config, drafter_config(drafter))
    nbytes = [estimated_bytes(target, recipe, ITEM_BYTES)]
    nbytes += [] if drafter is None else [estimated_bytes(drafter, None, ITEM_BYTES)]
    choose_threads(new_target(config))
    parts, total = target_parts(config, recipe, context), len(set(config.layers)) + len(nbytes)
    if nbytes[0] <= PART_BYTES:
        parts, total = [together(list(parts))], len(nbytes)
    report = progress or (lambda done, total: None)
    report(0, total)
    timer, passes, largest = Timer(), [], 0
    for done, part in enumerate(parts, start=1):
        passes.append(timer.part(part, ROWS, others=nbytes[0] - part.nbytes))
        largest = max(largest, part.nbytes)
        report(done, total)
        del part
        _free()
    verify = {rows: _added([each[rows] for each in passes]) for rows in ROWS}
    rounds = {}
    if drafter is not None:
        part = drafter_part(drafter_config(drafter), config, context)
        drafting, largest = timer.part(part, STEPS, others=nbytes[0]), max(largest, part.nbytes)
        rounds = {k: _added([_between(verify, k + 1), _between(drafting, k)]) for k in DEPTHS}
        report(total, total)
    words = f"{8 * ITEM_BYTES}-bit" if recipe is None else f"{recipe.parameters['bits']}-bit"
    return Estimate(name, words, context, sum(nbytes), this_machine(), verify[1], rounds, largest)


def _free() -> None:
    gc.collect()  # compiled functions hold their weights in cycles
    mx.clear_cache()


def _added(parts: Sequence[Spread]) -> Spread:
    """The sum, as uncertain as if all parts were slow or fast together."""
    return Spread(*(sum(values) for values in zip(*(_values(part) for part in parts), strict=True)))


def _between(known: Mapping[int, Spread], at: int) -> Spread:
    """On the line through the two nearest that are `known`."""
    low, high = sorted(sorted(known, key=lambda count: abs(count - at))[:2])
    share = (at - low) / (high - low)
    pairs = zip(_values(known[low]), _values(known[high]), strict=True)
    return Spread(*(a + share * (b - a) for a, b in pairs))


def _values(spread: Spread) -> tuple[float, float, float]:
    return spread.median, spread.lower, spread.upper
