"""A key-value cache that knows which token ids it holds, so that a conversation's next turn processes only new tokens.

Warm equals cold: whatever the prompts share, and however a reply ended, a turn gives what it would on an empty cache.
"""

from collections.abc import Sequence

import mlx.core as mx

from mtp_mlx.decoding.prefill import PREFILL_STEP_SIZE, Progress, prefill
from mtp_mlx.decoding.sampling import LogitsProcessor
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.load import AnyTarget, as_target
from mtp_mlx.models.drafter import Drafter


class PromptCache:
    """Keeps the keys and values of one conversation from turn to turn.

    For each turn: `begin`, perhaps `process`, generate after what they return on `cache` (with `processors` if there
    are any), and `record` each emitted token. Nothing more is to be done when the generation ends, not even when it was
    closed early or raised an error.

    Args:
        model: the target.
        draft_model: the drafter that will be used, if any: one with a store of its own has to read the prompt too.
    """

    def __init__(self, model: AnyTarget, draft_model: Drafter | None = None):
        self.model, self.drafter = as_target(model), draft_model
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self.cache: KVCache = self.model.make_cache()
        self._seen: list[int] = []
        self._prompt_length = 0
        self._marked = False

    def adopt(self, cache: KVCache, ids: list[int]) -> None:
        """Takes over a `cache` that holds the keys and values of `ids`."""
        self.cache, self._seen, self._prompt_length, self._marked = cache, list(ids), len(ids), True

    @property
    def ids(self) -> list[int]:
        """The token ids whose keys and values the cache holds."""
        return self._seen[: self.cache.offset]

    def begin(self, prompt: list[int]) -> list[int]:
        """Makes the cache hold a beginning of `prompt`, the longest it can.

        Args:
            prompt: the ids of the whole conversation so far, at least one.

        Returns:
            The ids still to be processed: at least the last one, because the next token is chosen from its output.
        """
        held = self.cache.rewind(min(common_prefix(self.ids, prompt), len(prompt) - 1))
        self._seen, self._prompt_length, self._marked = list(prompt), len(prompt), False
        return prompt[held:]

    def process(self, end: int, step_size: int = PREFILL_STEP_SIZE, progress: Progress | None = None) -> list[int]:
        """Processes the prompt that was begun up to `end`, and marks that as a place to go back to.

        Args:
            end: how many of its ids later turns will begin with too, however they render this turn's reply.
            step_size: tokens to process at a time.
            progress: called with (tokens processed, tokens in all); an error that it raises ends the processing.

        Returns:
            The ids still to be processed.
        """
        start = self.cache.offset
        if start < end < self._prompt_length:
            self._prefill(start, end, step_size, progress)
        if self.cache.offset == end > 0:
            self.mark()
        return self._seen[self.cache.offset : self._prompt_length]

    def _prefill(self, start: int, end: int, step_size: int, progress: Progress | None) -> None:
        try:
            if self.drafter is not None:
                self.drafter.join(self.cache)
            prefill(self.model, mx.array([self._seen[start:end]]), self.cache, step_size, progress, self.drafter)
            mx.eval(self.cache.arrays)
        except BaseException:  # also Ctrl-C: the chunk may have overwritten what the rings held
            self.cache.rewind(self.cache.offset)
            raise

    def processors(self, processors: Sequence[LogitsProcessor]) -> list[LogitsProcessor]:
        """The same logits processors for the generation that follows: they see the ids in the cache as well."""
        held = mx.array(self.ids, mx.int32)

        def seeing_all(processor: LogitsProcessor) -> LogitsProcessor:
            return lambda ids, logits: processor(mx.concatenate([held.astype(ids.dtype), ids]), logits)

        return [seeing_all(processor) for processor in processors] if self.ids else list(processors)

    def mark(self) -> None:
        """Makes the end of what the cache holds a place that it can go back to."""
        self.cache.checkpoint()
        self._marked = True

    def record(self, token: int) -> None:
        """Notes an emitted token. The first of a turn marks the end of its prompt, if no place in it was marked."""
        if len(self._seen) == self._prompt_length and not self._marked:
            # A template may render a reply otherwise than it was emitted (without its thoughts, trimmed): the next
            # turn's prompt then agrees with the cache only up to here, which can be further back than the rings reach.
            self.cache.checkpoint()
        self._seen.append(token)


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the longest beginning that both have."""
    pairs = zip(a, b, strict=False)
    return next((n for n, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
