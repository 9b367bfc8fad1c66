"""The figures of a bench run: raw runs, and what they come to. `to_dict` gives what `mtp bench --json` prints."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mtp_mlx.bench.machine import Machine
from mtp_mlx.decoding.sampling import Sampling
from mtp_mlx.exactness import ExactWay
from mtp_mlx.speculation import Speculation

GRAM = 8  # the length of token sequence whose repetition is counted


@dataclass(frozen=True)
class Run:
    """One generation.

    Attributes:
        tokens: the emitted ids.
        prefill_seconds: from the start to the first token.
        decode_seconds: from the first token to the last.
        peak_memory: MLX's peak memory in bytes.
        from_draft: which tokens are accepted drafts.
    """

    tokens: list[int]
    prefill_seconds: float
    decode_seconds: float
    peak_memory: int
    speculation: Speculation = Speculation()
    from_draft: list[bool] = field(default_factory=list)

    @property
    def decode_tps(self) -> float:
        """(n - 1) / (t_n - t_1): tokens come in bursts, so only the first and the last have a meaningful time."""
        return (len(self.tokens) - 1) / self.decode_seconds


@dataclass(frozen=True)
class Divergence:
    """Where the two outputs of a prompt first differ.

    Attributes:
        index: of the first token that differs.
        plain, mtp: that token.
        logit_gap: how much plain decoding's token is ahead, by a forward pass over what precedes it. A gap within
            rounding is a tie that a pass over several rows may decide otherwise; anything more is a fault.
    """

    index: int
    plain: int
    mtp: int
    logit_gap: float


@dataclass(frozen=True)
class Departure:
    """How far lenient output strays from the target's own.

    Attributes:
        share: of the tokens, those that are accepted drafts and not the target's likeliest there.
        kl: mean over all tokens, in nats: a token that was settled by an accepted draft has the divergence of certainty
            from the target's distribution, -log p; one that the target chose itself has none.
    """

    share: float
    kl: float


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
class PromptResult:
    """All runs of one prompt; those of ways that were not measured are empty."""

    category: str
    text: str
    prompt_tokens: int
    plain: list[Run] = field(default_factory=list)
    mtp: list[Run] = field(default_factory=list)
    lenient: list[Run] = field(default_factory=list)
    divergence: Divergence | None = None
    departure: Departure | None = None

    def runs(self, way: str) -> list[Run]:
        return {"plain": self.plain, "mtp": self.mtp, "lenient": self.lenient}[way]

    @property
    def plain_tps(self) -> float:
        return statistics.median(run.decode_tps for run in self.plain)

    @property
    def mtp_tps(self) -> float:
        return statistics.median(run.decode_tps for run in self.mtp)

    @property
    def speed_up(self) -> float:
        return self.mtp_tps / self.plain_tps

    @property
    def lenient_speed_up(self) -> float:
        return statistics.median(run.decode_tps for run in self.lenient) / self.plain_tps

    @property
    def repeated_share(self) -> float:
        """Share of 8-grams of the output that occurred in it before: loops are easy to draft."""
        return repeated_share(self.plain[0].tokens)

    def to_dict(self) -> dict[str, Any]:
        runs = {"plain": self.plain, "mtp": self.mtp, "lenient": self.lenient}
        return {
            "category": self.category,
            "prompt": self.text,
            "prompt_tokens": self.prompt_tokens,
            "repeated_share": self.repeated_share,
            "speed_up": self.speed_up if self.mtp else None,
            "divergence": asdict(self.divergence) if self.divergence else None,
            "departure": asdict(self.departure) if self.departure else None,
            "runs": {name: [_run_dict(run) for run in each] for name, each in runs.items()},
        }


@dataclass(frozen=True)
class Summary:
    """Several prompts together: medians over prompts of each prompt's median over its runs."""

    category: str
    prompts: int
    plain_tps: Spread
    repeated_share: float
    mtp_tps: Spread | None = None
    speed_up: Spread | None = None
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
            sum((run.speculation for result in results for run in result.mtp), Speculation()),
            *cls._of_lenient(results),
        )

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
    """A whole bench run."""

    model: str
    num_tokens: int
    repeats: int
    num_draft_tokens: int | str
    sampler: Sampling
    machine: Machine
    memory: Memory
    results: list[PromptResult]
    exact: ExactWay | None = None

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
        runs = [(result.prompt_tokens, run) for result in self.results for run in (*result.plain, *result.mtp)]
        return Spread.of(tokens / run.prefill_seconds for tokens, run in runs)

    @property
    def diverged(self) -> list[PromptResult]:
        return [result for result in self.results if result.divergence is not None]

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "num_tokens": self.num_tokens,
            "stop_ids": "ignored",
            "repeats": self.repeats,
            "num_draft_tokens": self.num_draft_tokens,
            "sampling": asdict(self.sampler),
            "outputs_compared": self.sampler.is_reproducible,
            "machine": asdict(self.machine),
            "memory_bytes": asdict(self.memory),
            "exact": self.exact and self.exact.to_dict(),
            "prefill_tps": asdict(self.prefill_tps),
            "overall": self.overall.to_dict(),
            "categories": [summary.to_dict() for summary in self.categories],
            "diverged": len(self.diverged),
            "prompts": [result.to_dict() for result in self.results],
        }


def repeated_share(tokens: Sequence[int]) -> float:
    """Share of the 8-grams of `tokens` that are repetitions of an earlier one; 0.0 for fewer than 8 tokens."""
    grams = [tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _run_dict(run: Run) -> dict[str, Any]:
    return {
        "tokens": run.tokens,
        "decode_tps": run.decode_tps,
        "prefill_seconds": run.prefill_seconds,
        "decode_seconds": run.decode_seconds,
        "peak_memory": run.peak_memory,
        "speculation": run.speculation.to_dict(),
    }
