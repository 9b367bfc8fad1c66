"""How drafts are proposed, how many of a round are accepted, and which token follows them.

A rule is told the target's logits for every row of a round at once, and where in the sequence they stand. All of it
stays on the device; `compiles` says whether a round with this rule may be traced.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import mlx.core as mx
from mlx_lm.sample_utils import greedy_sampler

from mtp_mlx.decoding import noise
from mtp_mlx.decoding.drafts import Drafts
from mtp_mlx.decoding.sampling import Controls, Filters, Sampler, Sampling, distribution, draw, log_softmax
from mtp_mlx.errors import MisuseError
from mtp_mlx.models.drafter import Drafter, Pick

# Medusa (Cai et al., arXiv 2401.10774), "typical acceptance": the values of its implementation.
LENIENT_EPSILON, LENIENT_DELTA = 0.09, 0.3


class Rule(Protocol):
    """How a target and its drafter choose tokens."""

    compiles: bool

    def propose(
        self, draft: Callable[[Pick | None], mx.array], positions: mx.array, controls: Controls | None
    ) -> Drafts:
        """Drafts: calls `draft` with what chooses from the drafter's hidden states; None takes the likeliest.

        Args:
            positions: where the drafts will stand [B, k].
        """

    def settle(
        self, logits: mx.array, drafts: Drafts, positions: mx.array, controls: Controls | None
    ) -> tuple[mx.array, mx.array]:
        """Decides a round from the target's logits [B, k+1, V].

        Args:
            positions: of the tokens that the rows choose [B, k+1].

        Returns:
            ids [B, k+1] and accepted counts [B]: `ids[b, : accepted[b] + 1]` are emitted.
        """


def count_agreeing(drafts: mx.array, chosen: mx.array) -> mx.array:
    """Length of the longest prefix of the drafts that equals what the target chose.

    Args:
        drafts: proposed ids [B, k].
        chosen: the target's ids after each of the k+1 rows [B, k+1]; column i is its choice where draft i stands.

    Returns:
        Accepted drafts of each slot [B], int32. The emitted tokens are then `chosen[b, : accepted[b] + 1]`.
    """
    return _leading(drafts == chosen[:, :-1])


def _leading(agree: mx.array) -> mx.array:
    """How many of [B, k] hold before the first that does not."""
    return mx.cumprod(agree.astype(mx.int32), axis=1).sum(axis=1)


def _followed_by(drafts: mx.array, accepted: mx.array, final: mx.array) -> mx.array:
    """Ids [B, k+1]: the drafts [B, k], with `final` [B] in the place after the accepted ones."""
    padded = mx.concatenate([drafts, drafts[:, :1] if drafts.shape[1] else final[:, None]], axis=1)
    return mx.where(mx.arange(padded.shape[1]) == accepted[:, None], final[:, None], padded)


@dataclass(frozen=True)
class Greedy:
    """The target takes its likeliest token; a draft is accepted when it is that one. Ties go to the lowest id."""

    compiles = True

    def propose(self, draft, positions, controls) -> Drafts:
        return Drafts(draft(None))

    def settle(self, logits, drafts, positions, controls):
        chosen = mx.argmax(logits, axis=-1)
        return chosen, count_agreeing(drafts.tokens, chosen)


@dataclass(frozen=True)
class Matching:
    """Samplers of mlx-lm's kind, log-probabilities [N, V] -> ids [N], one a slot: a draft is accepted if it was drawn.

    Lossless, because every token is what the sampler drew; but a draft of probability q is accepted only with the
    probability that the target gives it, where rejection sampling would accept more.
    """

    samplers: tuple[Sampler, ...]
    compiles = False

    def propose(self, draft, positions, controls) -> Drafts:
        return Drafts(draft(None))

    def settle(self, logits, drafts, positions, controls):
        chosen = mx.stack([sampler(row) for sampler, row in zip(self.samplers, log_softmax(logits), strict=True)])
        return chosen, count_agreeing(drafts.tokens, chosen)


@dataclass(frozen=True)
class Rejection:
    """Speculative sampling (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).

    A draft drawn with probability q is accepted with probability min(1, p/q). After the first rejection follows a draw
    from the normalized (p - q)+, after full acceptance one from p: the output is distributed as the target's own.
    """

    filters: Filters
    compiles = True

    def propose(self, draft, positions, controls) -> Drafts:
        drawn = _Drawn(self.filters, controls, noise.uniform(controls.key, positions)[..., noise.DRAFT])
        tokens = draft(drawn.pick)
        return drawn.drafts(tokens)

    def settle(self, logits, drafts, positions, controls):
        p, k = distribution(logits, self.filters, controls, controls.temp), drafts.count
        uniform = noise.uniform(controls.key, positions)
        accepted = self._accepted(p, drafts, uniform[:, :-1, noise.ACCEPT])
        at_end = mx.take_along_axis(p, accepted[:, None, None], axis=1)[:, 0]
        if k:
            rest = drafts.subtract(at_end, mx.minimum(accepted, k - 1))
            # Where p and q agree to the last bit, what rounding left of p - q may be nothing at all.
            rejected = (accepted < k)[:, None] & (rest.sum(axis=-1, keepdims=True) > 0)
            at_end = mx.where(rejected, rest, at_end)
        final = draw(at_end, mx.take_along_axis(uniform[..., noise.FINAL], accepted[:, None], axis=1)[:, 0])
        return _followed_by(drafts.tokens, accepted, final), accepted

    def _accepted(self, p: mx.array, drafts: Drafts, uniform: mx.array) -> mx.array:
        """Accepted drafts [B], by the target's distributions [B, k+1, V] and a number in [0, 1) a draft [B, k]."""
        if not drafts.count:
            return mx.zeros(p.shape[:1], mx.int32)
        chance = mx.take_along_axis(p[:, :-1], drafts.tokens[:, :, None], axis=2)[:, :, 0]
        return _leading(uniform * (1.0 if drafts.chance is None else drafts.chance) < chance)


@dataclass
class _Drawn:
    """Draws drafts from the drafter's distribution, and remembers that."""

    filters: Filters
    controls: Controls
    uniform: mx.array  # [B, k]
    steps: list[tuple] = field(default_factory=list)

    def pick(self, drafter: Drafter, h: mx.array) -> mx.array:
        ids, logits = drafter.candidates(h)
        probs = distribution(logits, self.filters, self.controls, self.controls.draft_temp)
        step = len(self.steps)
        index = draw(probs, self.uniform[:, step : step + 1])
        chance = mx.take_along_axis(probs, index[..., None], axis=-1)[..., 0]
        self.steps.append((chance, probs) if ids is None else (chance, probs, ids))
        return index if ids is None else mx.take_along_axis(ids, index[..., None], axis=-1)[..., 0]

    def drafts(self, tokens: mx.array) -> Drafts:
        """With their distributions; a drafter that did not ask proposed with certainty."""
        return Drafts(tokens, *(mx.concatenate(parts, axis=1) for parts in zip(*self.steps, strict=True)))


@dataclass(frozen=True)
class Coupled:
    """Sampling whose outcome does not depend on the drafter, nor on how deep it drafts.

    Every token of the vocabulary has its own Gumbel noise at every position, a function of the seed. The target takes
    the maximum of log p plus noise, a draw from p; the drafter takes that of log q plus the same noise, so that
    it often proposes just this token (Daliri et al., arXiv 2408.07978, "drafter-invariant"). A few more drafts are
    rejected than by `Rejection`, but a seed gives the same text with any drafter, any depth, or none.
    """

    filters: Filters
    compiles = True

    def propose(self, draft, positions, controls) -> Drafts:
        places = iter(mx.split(positions, positions.shape[1], axis=1))

        def pick(drafter: Drafter, h: mx.array) -> mx.array:
            ids, logits = drafter.candidates(h)
            probs = distribution(logits, self.filters, controls, controls.draft_temp)
            every = mx.arange(logits.shape[-1]) if ids is None else ids
            index = mx.argmax(mx.log(probs) + noise.gumbel(controls.key, next(places), every), axis=-1)
            return index if ids is None else mx.take_along_axis(ids, index[..., None], axis=-1)[..., 0]

        return Drafts(draft(pick))

    def settle(self, logits, drafts, positions, controls):
        p = distribution(logits, self.filters, controls, controls.temp)
        chosen = mx.argmax(mx.log(p) + noise.gumbel(controls.key, positions, mx.arange(p.shape[-1])), axis=-1)
        return chosen, count_agreeing(drafts.tokens, chosen)


@dataclass(frozen=True)
class Lenient:
    """Typical acceptance (Medusa, arXiv 2401.10774): NOT lossless, the output may differ from the target's.

    A draft is accepted when the target finds it plausible: p > min(ε, δ · exp(-H)), with H the entropy of the target's
    distribution there, at its temperature (1 where the target is greedy). Drafts are the drafter's likeliest tokens.
    The token after them is drawn from the target's distribution as always.
    """

    filters: Filters
    compiles = True

    def propose(self, draft, positions, controls) -> Drafts:
        return Drafts(draft(None))

    def settle(self, logits, drafts, positions, controls):
        accepted = mx.zeros(positions.shape[:1], mx.int32)
        if drafts.count:
            accepted = _leading(self.plausible(logits[:, :-1], drafts.tokens, controls))
        at_end = mx.take_along_axis(logits, accepted[:, None, None], axis=1)
        p = distribution(at_end, self.filters, controls, controls.temp)[:, 0]
        uniform = noise.uniform(controls.key, mx.take_along_axis(positions, accepted[:, None], axis=1))
        final = draw(p, uniform[:, 0, noise.FINAL])
        return _followed_by(drafts.tokens, accepted, final), accepted

    def plausible(self, logits: mx.array, tokens: mx.array, controls: Controls) -> mx.array:
        """Which of `tokens` [B, k] the target's logits [B, k, V] find plausible."""
        logprobs = log_softmax(logits.astype(mx.float32) / mx.where(controls.temp > 0, controls.temp, 1.0))
        probs = mx.exp(logprobs)
        entropy = -mx.where(probs > 0, probs * logprobs, 0).sum(axis=-1)
        chance = mx.take_along_axis(probs, tokens[:, :, None], axis=2)[:, :, 0]
        return chance > mx.minimum(LENIENT_EPSILON, LENIENT_DELTA * mx.exp(-entropy))


def rule_for(samplers: Sequence[Sampler | None]) -> tuple[Rule, Controls | None]:
    """The rule that fits the samplers of all slots, and their values. None is greedy.

    Raises:
        MisuseError: a lenient slot beside one that is not, or a seed beside a sampler of one's own.
    """
    rows = [Sampling(temp=0.0) if sampler in (None, greedy_sampler) else sampler for sampler in samplers]
    own = [row for row in rows if isinstance(row, Sampling)]
    if len({row.lenient for row in own}) > 1:
        raise MisuseError("lenient requests must not share a batch with others", fix="give them a batch of their own")
    if len(own) < len(rows):
        if any(row.seed is not None or row.lenient for row in own):
            raise MisuseError("a seed or lenient must not share a batch with samplers of one's own")
        return Matching(tuple(rows)), None
    if all(row.temp == 0 for row in own) and not any(row.lenient for row in own):
        return Greedy(), None
    rule = Lenient if own[0].lenient else Coupled if any(row.seed is not None for row in own) else Rejection
    return rule(Filters.of(own)), Controls.of(own)
