"""Which token the target chooses from its logits, for every row of a round at once."""

from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx

Sampler = Callable[[mx.array], mx.array]
LogitsProcessor = Callable[[mx.array, mx.array], mx.array]


@dataclass
class Choice:
    """The way tokens are chosen: logits processors, then a sampler, with mlx-lm's signatures of both.

    Args:
        sampler: log-probabilities [N, V] -> ids [N]; None takes the most likely token, the lowest id where it ties.
        processors: (ids so far [n], logits [1, V]) -> logits [1, V], called with the context plain decoding has.

    A draft is accepted when it equals the chosen token, so any sampler keeps the target's distribution.
    """

    sampler: Sampler | None = None
    processors: list[LogitsProcessor] = field(default_factory=list)

    @property
    def is_greedy(self) -> bool:
        """Whether the choice is the plain argmax, which depends on nothing but the logits and can be compiled."""
        return self.sampler is None and not self.processors

    def process(self, logits: mx.array, rows: mx.array, history: list[int]) -> mx.array:
        """Applies the processors to `logits` [1, L, V] of the input ids `rows` [1, L], which `history` precedes."""
        if not self.processors:
            return logits
        context = mx.concatenate([mx.array(history, rows.dtype), rows[0]])
        processed = []
        for i in range(rows.shape[1]):
            row = logits[:, i]
            for processor in self.processors:
                row = processor(context[: len(history) + i + 1], row)
            processed.append(row)
        return mx.stack(processed, axis=1)

    def choose(self, logits: mx.array) -> mx.array:
        """Logits [B, L, V] -> chosen ids [B, L]."""
        if self.sampler is None:
            return mx.argmax(logits, axis=-1)
        B, L, V = logits.shape
        return self.sampler(log_softmax(logits).reshape(B * L, V)).reshape(B, L)


def log_softmax(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)
