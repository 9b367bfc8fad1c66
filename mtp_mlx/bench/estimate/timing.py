"""Times parts as they would run in the middle of a whole model: with the rest of its weights read in between."""

import time
from collections.abc import Sequence

import mlx.core as mx

from mtp_mlx.bench.estimate.parts import Part
from mtp_mlx.bench.spread import Spread

FLUSH_BYTES = 1 << 28  # more than caches hold
MIN_TRIES, MAX_TRIES, ENOUGH_SECONDS = 2, 15, 1.5


class Timer:
    """Measures parts."""

    def __init__(self):
        self.sync = self._of(lambda: [mx.array([0]) + 1]).median

    def part(self, part: Part, counts: Sequence[int], others: int) -> dict[int, Spread]:
        """Seconds of a pass over so many rows, for each of `counts`; once for all the times that the part stands for.

        What it takes to wait for a result is taken off: a whole model waits only once.

        Args:
            others: bytes of weights that are read between two passes over this part.
        """
        rest = mx.zeros((max(0, min(FLUSH_BYTES, others)) // 4 + 1,))
        mx.eval(rest)
        found = {}
        for count in counts:
            mx.eval(part.run(count))  # compiles
            seconds = self._of(lambda count=count: part.run(count), rest)
            found[count] = Spread(*(self._without_waiting(value) * part.times for value in _values(seconds)))
        return found

    def _without_waiting(self, seconds: float) -> float:
        return max(seconds - self.sync, seconds / 2)  # of a tiny part, what waiting takes is no more than noise

    def _of(self, run, others: mx.array | None = None) -> Spread:
        times: list[float] = []
        while len(times) < MIN_TRIES or (len(times) < MAX_TRIES and sum(times) < ENOUGH_SECONDS):
            if others is not None:
                mx.eval(others.max())
            started = time.perf_counter()
            mx.eval(run())
            times.append(time.perf_counter() - started)
        return Spread.of(times)


def _values(spread: Spread) -> tuple[float, float, float]:
    return spread.median, spread.lower, spread.upper
