"""A key-value cache that knows which token ids it holds, so that a conversation's next turn processes only new tokens.

Warm equals cold: whatever the prompts share, and however a reply ended, a turn gives what it would on an empty cache.
"""

from mtp_mlx.kv_cache import KVCache
from mtp_mlx.load import Target, as_target


class PromptCache:
    """Keeps the keys and values of one conversation from turn to turn.

    For each turn: `begin`, generate after what it returns on `cache`, and `record` each emitted token. Nothing more is
    to be done when the generation ends, not even when it was closed early or raised an error.

    Args:
        model: the target.
    """

    def __init__(self, model: Target):
        self._model = as_target(model)
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self.cache: KVCache = self._model.make_cache()
        self._seen: list[int] = []
        self._prompt_length = 0

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
        held = self.cache.rewind(min(_common_prefix(self.ids, prompt), len(prompt) - 1))
        self._seen, self._prompt_length = list(prompt), len(prompt)
        return prompt[held:]

    def record(self, token: int) -> None:
        """Notes an emitted token. The first of a turn also marks the end of its prompt as a place to go back to."""
        if len(self._seen) == self._prompt_length:
            # A template may render a reply otherwise than it was emitted (without its thoughts, trimmed): the next
            # turn's prompt then agrees with the cache only up to here, which can be further back than the rings reach.
            self.cache.checkpoint()
        self._seen.append(token)


def _common_prefix(a: list[int], b: list[int]) -> int:
    pairs = zip(a, b, strict=False)
    return next((n for n, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
