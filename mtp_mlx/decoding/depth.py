"""How many tokens to draft in a round: the policy, fed with measurements, knowing nothing of models.

A round with k drafts takes `seconds(k)` and is expected to emit 1 + a₁ + a₁a₂ + … tokens, with aᵢ the chance that the
draft at position i is accepted when those before it were. `AutoDepth` measures both and stays at the depth with the
most tokens a second. 0 is a depth like any other: where drafting does not pay, it decodes plainly and only looks again
at growing intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mtp_mlx.errors import MisuseError
from mtp_mlx.kv_cache import MAX_DRAFT_TOKENS

START = 3  # vLLM's recipes for Gemma 4 draft 2 to 4 tokens; the demo pair is fastest at 3 or 4
MOST = 8  # the deepest that anyone reports as useful (31B in vLLM's recipes)
SMOOTHING = 0.1  # weight of a new observation: the last 20 rounds or so count
PRIOR_ROUNDS = 4.0  # how many rounds the first guess of an acceptance counts for
PRIOR_ACCEPTANCE = 0.7
PRIOR_SLOPE = 0.12  # cost of a draft in plain steps before it is measured; 31B on an M3 Ultra: 0.17, dense layers: 0.09
DEAREST_SLOPE = 0.5  # the same at worst: a mixture of experts pays 0.43 for each row that is verified, and its draft
HYSTERESIS = 1.03  # round times of one depth differ by about this much from minute to minute
HOLD = 3  # rounds at a new depth before judging it: the first still verifies the old number of drafts
FIRST_HOLD = 4  # the first time, one more: it pays for tracing
FIRST_GAP, LAST_GAP = (
    16,
    512,
)  # rounds between two looks at another depth; the gap doubles while looking changes nothing
OUTLIER = 2.0  # a round is never believed to have taken longer than this many times the usual (growth, other programs)


class Depth(Protocol):
    """A policy for the number of drafts."""

    def choose(self) -> int:
        """Drafts to propose for the next round."""

    def observe(self, verified: int, accepted: Sequence[int], drafted: int, seconds: float | None) -> None:
        """Takes note of a round that verified some drafts, accepted some of them in each slot, and drafted anew.

        `seconds` are None where its time says nothing, because the device did something else as well.
        """


@dataclass
class FixedDepth:
    """The user's choice."""

    drafts: int

    def choose(self) -> int:
        return self.drafts

    def observe(self, verified: int, accepted: Sequence[int], drafted: int, seconds: float | None) -> None:
        pass


class Acceptance:
    """How often drafts are accepted, by position: of a pair and its texts, whatever a round costs.

    Args:
        most: positions to keep count of.
    """

    def __init__(self, most: int = MOST):
        self._agreed, self._tried = [0.0] * most, [0.0] * most
        self._guesses = [PRIOR_ROUNDS] * most

    def learn(self, verified: int, accepted: int) -> None:
        """Takes note that of `verified` drafts in one slot the first `accepted` were."""
        for position in range(min(verified, accepted + 1, len(self._tried))):
            self._agreed[position] += (position < accepted) - SMOOTHING * self._agreed[position]
            self._tried[position] += 1 - SMOOTHING * self._tried[position]
            self._guesses[position] *= 1 - SMOOTHING

    def at(self, position: int) -> float:
        """Chance that the draft at `position` (from 0) is accepted when those before it were."""
        guess = PRIOR_ACCEPTANCE if position == 0 else self.at(position - 1)
        weight = self._guesses[position]
        return (self._agreed[position] + weight * guess) / (self._tried[position] + weight)

    def expected_tokens(self, drafts: int) -> float:
        """Tokens that a round with so many drafts emits on average, the bonus token included."""
        tokens, chance = 1.0, 1.0
        for position in range(drafts):
            chance *= self.at(position)
            tokens += chance
        return tokens


@dataclass
class AutoDepth:
    """Finds the depth with the most expected tokens a second, and keeps looking.

    Args:
        most: deepest it tries.
        current: where it begins.
        acceptance: what is known of the pair already; by default nothing.
    """

    most: int = MOST
    current: int = START
    acceptance: Acceptance | None = None
    _gap: int = FIRST_GAP
    _seconds: dict[int, float] = field(default_factory=dict)
    _traced: set[int] = field(default_factory=set)
    _hold: int = FIRST_HOLD
    _settled: int = 0  # rounds since the last change
    _upwards: bool = False

    def __post_init__(self):
        self.current = min(self.current, self.most)
        self.acceptance = self.acceptance or Acceptance(self.most)
        self._home = self.current  # where it returns to after a look that changed nothing

    def for_other_load(self) -> "AutoDepth":
        """A policy for another number of slots: what a round costs is open again, what is accepted is not.

        It begins no deeper than usual, because rows may cost more there. Where drafting does not pay here, it begins
        without, and is as slow to look.
        """
        return AutoDepth(self.most, min(self._home, START), self.acceptance, FIRST_GAP if self._home else self._gap)

    def choose(self) -> int:
        return self.current

    def observe(self, verified: int, accepted: Sequence[int], drafted: int, seconds: float | None) -> None:
        for count in accepted:
            self.acceptance.learn(verified, count)
        if seconds is None:
            return
        if verified == drafted:  # otherwise the time is that of two depths mixed
            self._learn_seconds(verified, seconds)
        self._hold -= 1
        self._settled += 1
        if self._hold <= 0:
            self._decide()

    def seconds(self, drafts: int) -> float:
        """What a round costs: measured, or extrapolated from the nearest depths that were.

        A round never costs more than a deeper one: where noise says so, the deeper one's time is the better estimate.
        """
        deeper = [seconds for depth, seconds in self._seconds.items() if depth >= drafts]
        if drafts in self._seconds:
            return min(deeper)
        near, *others = sorted(self._seconds, key=lambda k: abs(k - drafts))
        plain = self._seconds[near] / (1 + PRIOR_SLOPE * near)
        slope = (self._seconds[near] - self._seconds[others[0]]) / (near - others[0]) if others else plain * PRIOR_SLOPE
        return max(self._seconds[near] + slope * (drafts - near), plain * 0.5)

    def rate(self, drafts: int) -> float:
        """Expected tokens a second."""
        return self.acceptance.expected_tokens(drafts) / self.seconds(drafts)

    def _learn_seconds(self, drafts: int, seconds: float) -> None:
        if drafts not in self._traced:
            self._traced.add(drafts)  # the first round of a depth traces it
            return
        usual = self._seconds.get(drafts, seconds)
        self._seconds[drafts] = usual + 2 * SMOOTHING * (min(seconds, OUTLIER * usual) - usual)

    def _decide(self) -> None:
        if not self._seconds:
            return
        best = max(self._candidates(), key=self.rate)
        if self.rate(best) > HYSTERESIS * self.rate(self.current):
            self._settle(best)
        elif self._plain_is_to_be_seen():
            self._go(0)
        elif self.current != self._home:
            self._settle(self.current)
        elif self._settled >= self._gap:
            self._look()

    def _plain_is_to_be_seen(self) -> bool:
        """Whether plain decoding could be faster, were drafts as dear as they can be, and was never measured."""
        dearest = 1 + DEAREST_SLOPE * self.current
        return 0 not in self._seconds and self.acceptance.expected_tokens(self.current) < dearest

    def _candidates(self) -> set[int]:
        known = set(self._seconds) | {0, self.current}
        return {k for base in known for k in (base - 1, base, base + 1) if 0 <= k <= self.most}

    def _settle(self, depth: int) -> None:
        """Moves to `depth`. Coming home from a look in vain doubles the time to the next one."""
        self._gap = min(2 * self._gap, LAST_GAP) if depth == self._home else FIRST_GAP
        self._home = depth
        self._go(depth)

    def _look(self) -> None:
        """Goes to see a neighbouring depth, above and below in turn."""
        self._upwards = not self._upwards
        deeper = self._home == 0 or (self._upwards and self._home < self.most)
        self._go(self._home + (1 if deeper else -1))

    def _go(self, depth: int) -> None:
        self.current = depth
        self._settled = 0
        self._hold = HOLD if depth in self._traced else FIRST_HOLD


def depth_policy(num_draft_tokens: int | str, auto: AutoDepth) -> Depth:
    """The policy for a `num_draft_tokens` argument: `auto` for "auto", otherwise the number itself.

    Raises:
        MisuseError: not "auto" nor an integer between 0 and `MAX_DRAFT_TOKENS`.
    """
    if num_draft_tokens == "auto":
        return auto
    if isinstance(num_draft_tokens, int) and 0 <= num_draft_tokens <= MAX_DRAFT_TOKENS:
        return FixedDepth(num_draft_tokens)
    raise MisuseError(
        f"the number of draft tokens must be 'auto' or between 0 and {MAX_DRAFT_TOKENS}", given=num_draft_tokens
    )
