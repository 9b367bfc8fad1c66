"""What a drafter proposed, and the distributions it drew from."""

from dataclasses import dataclass

import mlx.core as mx


@dataclass
class Drafts:
    """What was proposed after a token.

    Attributes:
        tokens: ids [B, k].
        chance: the probability [B, k] that each was drawn with; None where it was no draw.
        probs: the distributions they were drawn from, [B, k, C] over C candidates.
        ids: the candidates [B, k, C]; None where they are the whole vocabulary.
    """

    tokens: mx.array
    chance: mx.array | None = None
    probs: mx.array | None = None
    ids: mx.array | None = None

    @property
    def count(self) -> int:
        return self.tokens.shape[1]

    @property
    def arrays(self) -> list[mx.array]:
        """All there are, for compiled functions: `Drafts(*arrays)` puts them together again."""
        return [array for array in (self.tokens, self.chance, self.probs, self.ids) if array is not None]

    def first(self, count: int) -> "Drafts":
        """At most `count` of them."""
        return self if count >= self.count else Drafts(*(array[:, :count] for array in self.arrays))

    def subtract(self, probs: mx.array, which: mx.array) -> mx.array:
        """The part of `probs` [B, V] that lies above the distribution of draft `which` [B]."""
        if self.probs is None:  # proposed with certainty
            own = mx.take_along_axis(self.tokens, which[:, None], axis=1)
            return mx.put_along_axis(probs, own, mx.zeros_like(own).astype(probs.dtype), axis=1)
        own = mx.take_along_axis(self.probs, which[:, None, None], axis=1)[:, 0]
        if self.ids is None:
            return mx.maximum(probs - own, 0)
        ids = mx.take_along_axis(self.ids, which[:, None, None], axis=1)[:, 0]
        rest = mx.maximum(mx.take_along_axis(probs, ids, axis=1) - own, 0)
        return mx.put_along_axis(probs, ids, rest, axis=1)
