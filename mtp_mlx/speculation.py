"""What speculation did: how much was drafted and how much of it was accepted."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Speculation:
    """Statistics of one generation.

    Attributes:
        rounds: verification rounds, each one forward pass of the target. The first token comes from prefill.
        drafted_by_position: drafts that were verified, by their place in the round.
        accepted_by_position: of those, the accepted ones that were emitted.
    """

    rounds: int = 0
    drafted_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()

    @property
    def drafted(self) -> int:
        return sum(self.drafted_by_position)

    @property
    def accepted(self) -> int:
        return sum(self.accepted_by_position)

    @property
    def acceptance_rate(self) -> float:
        """Accepted ÷ drafted, 0.0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Accepted ÷ drafted at each place of the round."""
        pairs = zip(self.accepted_by_position, self.drafted_by_position, strict=True)
        return tuple(accepted / drafted if drafted else 0.0 for accepted, drafted in pairs)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens emitted a round, the bonus token included; 0.0 before the first round."""
        return 1 + self.accepted / self.rounds if self.rounds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_by_position": list(self.acceptance_by_position),
            "mean_acceptance_length": self.mean_acceptance_length,
        }

    def after(self, drafted: int, accepted: int) -> "Speculation":
        """These statistics with one more round."""
        return self + Speculation(1, (1,) * drafted, (1,) * accepted + (0,) * (drafted - accepted))

    def __add__(self, other: "Speculation") -> "Speculation":
        return Speculation(
            self.rounds + other.rounds,
            _add(self.drafted_by_position, other.drafted_by_position),
            _add(self.accepted_by_position, other.accepted_by_position),
        )


def _add(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    width = max(len(a), len(b))
    pad = [(*counts, *(0,) * (width - len(counts))) for counts in (a, b)]
    return tuple(x + y for x, y in zip(*pad, strict=True))
