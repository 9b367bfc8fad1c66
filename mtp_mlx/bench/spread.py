"""Medians with their spread, and how sure a paired ratio is."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000  # at which the ends of an interval move by less than a hundredth of its width


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        values = list(values)
        if len(values) == 1:
            return cls(*values * 3)
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, lower, upper)


@dataclass(frozen=True)
class Interval:
    """Where a figure lies with 95 % confidence."""

    lower: float
    upper: float

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper


def paired_interval(ahead: Sequence[Sequence[float]], behind: Sequence[Sequence[float]]) -> Interval | None:
    """95 % interval of the median over prompts of (median of `ahead`) ÷ (median of `behind`).

    Percentile bootstrap (Efron 1979) in two stages: prompts are drawn anew, and the runs of each. Draws come from a
    fixed seed, so that the same runs give the same interval.

    Args:
        ahead, behind: of each prompt, the values of its runs.

    Returns:
        None where there is nothing to draw from: one prompt that ran once.
    """
    if len(ahead) == 1 and len(ahead[0]) == len(behind[0]) == 1:
        return None
    random = np.random.default_rng(0)
    ratios = _drawn_medians(ahead, random) / _drawn_medians(behind, random)
    chosen = random.integers(len(ratios), size=ratios.shape)
    medians = np.median(np.take_along_axis(ratios, chosen, axis=0), axis=0)
    lower, upper = np.percentile(medians, [2.5, 97.5])
    return Interval(float(lower), float(upper))


def _drawn_medians(values: Sequence[Sequence[float]], random: np.random.Generator) -> np.ndarray:
    """The median of each prompt's runs drawn anew, many times: [prompts, RESAMPLES]."""
    runs = [np.asarray(each, np.float64) for each in values]
    return np.stack([np.median(each[random.integers(len(each), size=(RESAMPLES, len(each)))], axis=1) for each in runs])
