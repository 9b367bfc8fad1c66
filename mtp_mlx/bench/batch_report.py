"""What measuring batches found: runs of groups of prompts, results by batch size, and the whole report."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import mean
from typing import Any

from mtp_mlx.bench.machine import Machine
from mtp_mlx.bench.measure import Workload
from mtp_mlx.bench.spread import Spread
from mtp_mlx.decoding.sampling import Sampling
from mtp_mlx.speculation import Speculation


@dataclass(frozen=True)
class BatchRun:
    """One group of prompts, decoded at once.

    Attributes:
        tokens: of each row.
        first, last: seconds from the start to the first and the last token of each row.
        full_tokens: emitted by all rows together after each had its first token, until one ended.
        full_seconds: that time.
        speculation: of each row.
        peak_memory: MLX's, in bytes.
    """

    tokens: list[list[int]]
    first: list[float]
    last: list[float]
    full_tokens: int
    full_seconds: float
    speculation: list[Speculation] = field(default_factory=list)
    peak_memory: int = 0

    @property
    def aggregate_tps(self) -> float:
        """Of all rows together while all of them run."""
        return self.full_tokens / self.full_seconds

    @property
    def whole_tps(self) -> float:
        """Of all rows together from the first token to the last, the end included in which only some still run."""
        return sum(len(tokens) - 1 for tokens in self.tokens) / (max(self.last) - max(self.first))

    @property
    def sequence_tps(self) -> float:
        """Of one row, on average."""
        rows = zip(self.tokens, self.first, self.last, strict=True)
        return mean((len(tokens) - 1) / (last - first) for tokens, first, last in rows)


@dataclass(frozen=True)
class BatchResult:
    """All runs at one batch size; `mtp` is empty without a drafter.

    Attributes:
        rows: sequences at once.
        prompts: how many there are in all.
        plain, mtp: runs, in the order of the groups, repeat after repeat.
        different: for each prompt, whether a row of it was not what plain decoding gives for it alone; None where
            outputs cannot be compared.
    """

    rows: int
    prompts: int
    plain: list[BatchRun] = field(default_factory=list)
    mtp: list[BatchRun] = field(default_factory=list)
    different: list[bool] | None = None

    def speed(self, way: str, kind: str = "aggregate") -> Spread:
        """Of "plain" or "mtp", of a kind: "aggregate", "whole" or "sequence"."""
        speeds = {
            "aggregate": lambda run: run.aggregate_tps,
            "whole": lambda run: run.whole_tps,
            "sequence": lambda run: run.sequence_tps,
        }
        return Spread.of(map(speeds[kind], self.runs(way)))

    def speed_up(self, kind: str = "aggregate") -> float:
        """Median over MTP's runs divided by that over plain ones."""
        return self.speed("mtp", kind).median / self.speed("plain", kind).median

    @property
    def acceptance(self) -> list[float]:
        """Accepted ÷ drafted of each prompt, in their order."""
        return [sum(rows, Speculation()).acceptance_rate for rows in self.by_prompt("mtp", lambda run: run.speculation)]

    def by_prompt(self, way: str, rows_of: Callable[[BatchRun], list]) -> list[list]:
        """What `rows_of` gives for each row of all runs, collected by prompt."""
        groups = -(-self.prompts // self.rows)  # the last one is filled up from the beginning
        found: list[list] = [[] for _ in range(self.prompts)]
        for n, each in enumerate(row for run in self.runs(way) for row in rows_of(run)):
            found[n % (groups * self.rows) % self.prompts].append(each)
        return found

    def runs(self, way: str) -> list[BatchRun]:
        """Of "plain" or "mtp"; others may be appended."""
        return {"plain": self.plain, "mtp": self.mtp}[way]

    def to_dict(self) -> dict[str, Any]:
        ways = ("plain", "mtp") if self.mtp else ("plain",)
        kinds = ("aggregate", "whole", "sequence")
        return {
            "rows": self.rows,
            "tps": {way: {kind: asdict(self.speed(way, kind)) for kind in kinds} for way in ways},
            "speed_up": {kind: self.speed_up(kind) for kind in kinds} if self.mtp else None,
            "acceptance": self.acceptance if self.mtp else None,
            "different": self.different,
            "runs": {way: [_run_dict(run) for run in self.runs(way)] for way in ways},
        }


@dataclass(frozen=True)
class BatchReport:
    """A whole run: the results by batch size."""

    model: str
    num_tokens: int
    repeats: int
    num_draft_tokens: int | str
    sampler: Sampling
    machine: Machine
    prompts: list[Workload]
    results: list[BatchResult]

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "num_tokens": self.num_tokens,
            "stop_ids": "ignored",
            "repeats": self.repeats,
            "num_draft_tokens": self.num_draft_tokens,
            "sampling": asdict(self.sampler),
            "machine": asdict(self.machine),
            "prompts": [{"category": p.category, "prompt": p.text, "prompt_tokens": len(p.ids)} for p in self.prompts],
            "batches": [result.to_dict() for result in self.results],
        }


def _run_dict(run: BatchRun) -> dict[str, Any]:
    return {
        **asdict(run),
        "aggregate_tps": run.aggregate_tps,
        "whole_tps": run.whole_tps,
        "sequence_tps": run.sequence_tps,
        "speculation": [each.to_dict() for each in run.speculation],
    }
