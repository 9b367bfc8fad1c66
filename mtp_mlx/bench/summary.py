"""What runs come to: several prompts together."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mtp_mlx.bench.runs import Departure, PromptResult
from mtp_mlx.bench.spread import Interval, Spread, paired_interval
from mtp_mlx.speculation import Speculation


@dataclass(frozen=True)
class Summary:
    """Several prompts together: medians over prompts of each prompt's median over its runs.

    Attributes:
        speed_up_interval: 95 % confidence of the median speed-up; None where one prompt ran once.
    """

    category: str
    prompts: int
    plain_tps: Spread
    repeated_share: float
    mtp_tps: Spread | None = None
    speed_up: Spread | None = None
    speed_up_interval: Interval | None = None
    speculation: Speculation | None = None
    lenient_speed_up: Spread | None = None
    departure: Departure | None = None

    @classmethod
    def of(cls, category: str, results: Sequence[PromptResult]) -> "Summary":
        plain = Spread.of(result.plain_tps for result in results)
        repeated = statistics.mean(result.repeated_share for result in results)
        if not all(result.mtp for result in results):
            return cls(category, len(results), plain, repeated)
        return cls(
            category,
            len(results),
            plain,
            repeated,
            Spread.of(result.mtp_tps for result in results),
            Spread.of(result.speed_up for result in results),
            cls._interval(results),
            sum((run.speculation for result in results for run in result.mtp), Speculation()),
            *cls._of_lenient(results),
        )

    @staticmethod
    def _interval(results: Sequence[PromptResult]) -> Interval | None:
        mtp, plain = (
            [[run.decode_tps for run in runs] for runs in ways]
            for ways in ([result.mtp for result in results], [result.plain for result in results])
        )
        return paired_interval(mtp, plain)

    @staticmethod
    def _of_lenient(results: Sequence[PromptResult]) -> tuple[Spread | None, Departure | None]:
        departures = [result.departure for result in results if result.departure is not None]
        if len(departures) < len(results):
            return None, None
        mean = Departure(statistics.mean(d.share for d in departures), statistics.mean(d.kl for d in departures))
        return Spread.of(result.lenient_speed_up for result in results), mean

    def to_dict(self) -> dict[str, Any]:
        speculation = None if self.speculation is None else self.speculation.to_dict()
        return {**asdict(self), "speculation": speculation}
