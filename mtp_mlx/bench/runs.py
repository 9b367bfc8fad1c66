"""What was measured, as it was: single runs, and all runs of a prompt."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from mtp_mlx.speculation import Speculation

GRAM = 8  # the length of token sequence whose repetition is counted


class RoundCounts(NamedTuple):
    """One round: drafts that were verified, and those of them that were accepted and emitted."""

    drafted: int
    accepted: int


@dataclass(frozen=True)
class Run:
    """One generation.

    Attributes:
        tokens: the emitted ids.
        prefill_seconds: from the start to the first token.
        decode_seconds: from the first token to the last.
        peak_memory: MLX's peak memory in bytes.
        from_draft: which tokens are accepted drafts.
        rounds: each round in turn.
    """

    tokens: list[int]
    prefill_seconds: float
    decode_seconds: float
    peak_memory: int
    speculation: Speculation = Speculation()
    from_draft: list[bool] = field(default_factory=list)
    rounds: list[RoundCounts] = field(default_factory=list)

    @property
    def decode_tps(self) -> float:
        """(n - 1) / (t_n - t_1): tokens come in bursts, so only the first and the last have a meaningful time."""
        return (len(self.tokens) - 1) / self.decode_seconds

    def to_dict(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "decode_tps": self.decode_tps,
            "prefill_seconds": self.prefill_seconds,
            "decode_seconds": self.decode_seconds,
            "peak_memory": self.peak_memory,
            "speculation": self.speculation.to_dict(),
            "rounds": [list(counts) for counts in self.rounds],
        }


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
            "runs": {name: [run.to_dict() for run in each] for name, each in runs.items()},
        }


def repeated_share(tokens: Sequence[int]) -> float:
    """Share of the 8-grams of `tokens` that are repetitions of an earlier one; 0.0 for fewer than 8 tokens."""
    grams = [tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
