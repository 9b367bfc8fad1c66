"""What a drafter learns from: token sequences, and what the frozen target makes of them.

The target runs once over each sequence. Everything the drafter reads at any position (hidden states, the shared keys
and values) and everything it should predict is kept, so that training passes never run the target again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx

from mtp_mlx.kv_cache import KeysValues
from mtp_mlx.models.config import FULL, SLIDING
from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.steps import Uncached


@dataclass
class Examples:
    """B sequences of L tokens, seen by a target of hidden size D.

    Attributes:
        tokens: ids [B, L].
        hidden: the target's hidden states after its final norm [B, L, D].
        kv: by layer type, the keys and values that its KV-shared layers and the drafter read, [B, heads, L, head_dim].
        choices: the target's most likely next token after each position [B, L].
    """

    tokens: mx.array
    hidden: mx.array
    kv: dict[str, KeysValues]
    choices: mx.array

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def arrays(self) -> list[mx.array]:
        """All of them in a fixed order, for compiled functions; `of` puts them together again."""
        return [self.tokens, self.hidden, *self.kv[SLIDING], *self.kv[FULL], self.choices]

    @classmethod
    def of(cls, arrays: list[mx.array]) -> "Examples":
        tokens, hidden, *kv, choices = arrays
        return cls(tokens, hidden, {SLIDING: tuple(kv[:2]), FULL: tuple(kv[2:])}, choices)

    def rows(self, index: mx.array) -> "Examples":
        """The sequences at `index` [b]."""
        return Examples.of([array[index] for array in self.arrays])

    def batches(self, size: int) -> Iterator["Examples"]:
        """All sequences once in random order, `size` at a time; a last incomplete batch is left out."""
        order = mx.random.permutation(len(self))
        for start in range(0, len(self) - size + 1, size):
            yield self.rows(order[start : start + size])


def observe(target: Gemma4, tokens: mx.array, *, dtype: mx.Dtype = mx.float16, batch: int = 8) -> Examples:
    """Runs the target over `tokens` [B, L], `batch` sequences at a time, and keeps what a drafter needs.

    Args:
        dtype: of what is kept. float16 halves the memory and changes hardly any draft.
    """
    parts = []
    for start in range(0, tokens.shape[0], batch):
        examples = _observe_batch(target, tokens[start : start + batch])
        kept = [a.astype(dtype) if mx.issubdtype(a.dtype, mx.floating) else a for a in examples.arrays]
        mx.eval(kept)
        parts.append(kept)
    return Examples.of([mx.concatenate(arrays) for arrays in zip(*parts, strict=True)])


def _observe_batch(target: Gemma4, tokens: mx.array) -> Examples:
    step = Uncached(target.config, tokens.shape[1])
    hidden = target.model.forward(tokens, step)
    choices = mx.argmax(target.logits(hidden), axis=-1).astype(mx.int32)
    return Examples(tokens, hidden, step.kv, choices)
