"""What rounds did: how many drafts they accepted, how many they were given, and how that changed on the way."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import mean

from mtp_mlx.bench.runs import RoundCounts, Run

STRETCHES = 4  # that a generation is cut into to show a change over time


def shares_by_accepted(runs: Iterable[Run]) -> list[float]:
    """The share of rounds that accepted 0, 1, 2 … drafts; empty without rounds."""
    counts = Counter(counts.accepted for run in runs for counts in run.rounds)
    total = counts.total()
    return [counts[n] / total for n in range(max(counts) + 1)] if total else []


def over_time(runs: Sequence[Run], stretches: int = STRETCHES) -> list[RoundCounts]:
    """Mean drafts and accepted drafts a round in equal stretches of the generations, from their first to their last.

    A stretch that is empty in every generation, because rounds are too few, is left out.
    """
    parts = [[counts for run in runs for counts in _part(run.rounds, n, stretches)] for n in range(stretches)]
    return [RoundCounts(mean(c.drafted for c in part), mean(c.accepted for c in part)) for part in parts if part]


def _part(rounds: Sequence[RoundCounts], n: int, of: int) -> Sequence[RoundCounts]:
    return rounds[n * len(rounds) // of : (n + 1) * len(rounds) // of]
