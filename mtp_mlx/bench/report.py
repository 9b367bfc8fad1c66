"""The figures of a bench run. `to_dict` gives what `mtp bench -o json` prints."""

from dataclasses import asdict, dataclass
from typing import Any

from mtp_mlx.bench.instruments import Energy, Phases
from mtp_mlx.bench.machine import Machine
from mtp_mlx.bench.roofline import Roofline
from mtp_mlx.bench.rounds import over_time, shares_by_accepted
from mtp_mlx.bench.runs import PromptResult, Run
from mtp_mlx.bench.spread import Spread
from mtp_mlx.bench.summary import Summary
from mtp_mlx.decoding.sampling import Sampling
from mtp_mlx.exactness import ExactWay


@dataclass(frozen=True)
class Memory:
    """Bytes: the weights, the key-value buffers of the longest run, and MLX's peaks."""

    target: int
    drafter: int
    key_values: int
    plain_peak: int
    mtp_peak: int | None


@dataclass(frozen=True)
class Report:
    """A whole bench run with one drafter at one depth.

    Attributes:
        drafter: its name; empty for plain decoding, and where nobody named it.
        date: day and time of the run, ISO 8601.
        phases: where the time of a round goes, by a run of its own.
        energy: joules a token, where the machine reports them.
        stops: whether runs ended where replies do; `num_tokens` is the most they could have then.
    """

    model: str
    drafter: str
    date: str
    num_tokens: int
    repeats: int
    num_draft_tokens: int | str
    sampler: Sampling
    machine: Machine
    memory: Memory
    results: list[PromptResult]
    roofline: Roofline
    phases: Phases
    energy: Energy | None = None
    exact: ExactWay | None = None
    stops: bool = False

    @property
    def categories(self) -> list[Summary]:
        names = dict.fromkeys(result.category for result in self.results)
        return [Summary.of(name, [r for r in self.results if r.category == name]) for name in names]

    @property
    def overall(self) -> Summary:
        return Summary.of("all", self.results)

    @property
    def prefill_tps(self) -> Spread:
        """Prompt tokens a second up to the first token, over all runs."""
        return Spread.of(tokens / run.prefill_seconds for tokens, run in self._runs())

    @property
    def first_token_seconds(self) -> Spread:
        """Time to the first token, over all runs."""
        return Spread.of(run.prefill_seconds for _, run in self._runs())

    @property
    def drafting_first_token_seconds(self) -> Spread | None:
        """The same over the runs that draft, whose prefill may include the drafter's; None where there are none."""
        return Spread.of(run.prefill_seconds for run in self.mtp_runs) if self.mtp_runs else None

    @property
    def mtp_runs(self) -> list[Run]:
        return [run for result in self.results for run in result.mtp]

    @property
    def diverged(self) -> list[PromptResult]:
        return [result for result in self.results if result.divergence is not None]

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "drafter": self.drafter,
            "date": self.date,
            "num_tokens": self.num_tokens,
            "stop_ids": "end a run" if self.stops else "ignored",
            "repeats": self.repeats,
            "num_draft_tokens": self.num_draft_tokens,
            "sampling": asdict(self.sampler),
            "outputs_compared": self.sampler.is_reproducible,
            "machine": asdict(self.machine),
            "memory_bytes": asdict(self.memory),
            "exact": self.exact and self.exact.to_dict(),
            "prefill_tps": asdict(self.prefill_tps),
            "first_token_seconds": asdict(self.first_token_seconds),
            "drafting_first_token_seconds": (first := self.drafting_first_token_seconds) and asdict(first),
            "rounds_by_accepted": shares_by_accepted(self.mtp_runs),
            "rounds_over_time": [counts._asdict() for counts in over_time(self.mtp_runs)],
            "phase_seconds": asdict(self.phases),
            "roofline": self.roofline.to_dict(),
            "joules_per_token": None if self.energy is None else asdict(self.energy),
            "overall": self.overall.to_dict(),
            "categories": [summary.to_dict() for summary in self.categories],
            "diverged": len(self.diverged),
            "prompts": [result.to_dict() for result in self.results],
        }

    def _runs(self) -> list[tuple[int, Run]]:
        return [(result.prompt_tokens, run) for result in self.results for run in (*result.plain, *result.mtp)]
