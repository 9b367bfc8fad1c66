"""What a batch hands out: tokens, how far prompts are, and statistics of all; with mlx-lm's field names."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx

from mtp_mlx.decoding.sampling import log_softmax
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.speculation import Speculation


@dataclass
class PromptProgress:
    """How far a prompt is.

    Attributes:
        uid: of the sequence.
        progress: tokens processed, and in all.
        end_of_segment, end_of_prompt: whether one was reached.
    """

    uid: int
    progress: tuple[int, int]
    end_of_segment: bool
    end_of_prompt: bool


@dataclass
class BatchToken:
    """One emitted token of one sequence: mlx-lm's fields, and what speculation did.

    Attributes:
        uid: of the sequence.
        token: its id.
        logits: the target's logits [V] that it was chosen from.
        from_draft: whether the drafter proposed it.
        finish_reason: "stop" or "length" with the last token, None before.
        all_tokens: with the last token, the prompt and everything emitted.
        speculation: rounds, drafted, accepted, up to this token's round.
        store: makes `prompt_cache`; with the last token.
    """

    uid: int
    token: int
    logits: mx.array
    from_draft: bool
    finish_reason: str | None = None
    all_tokens: list[int] | None = None
    speculation: Speculation = Speculation()
    store: Callable[[], KVCache] | None = None

    @cached_property
    def logprobs(self) -> mx.array:
        """Log-probabilities [V] of what the token was chosen from; computed when asked for."""
        return log_softmax(self.logits)

    @cached_property
    def prompt_cache(self) -> KVCache | None:
        """With the last token, a store that holds `all_tokens`: a further turn gives its own tokens only.

        The last token goes through the target when this is asked for.
        """
        return None if self.store is None else self.store()


@dataclass
class BatchStats:
    """What a batch generator did.

    Attributes:
        prompt_tokens, generation_tokens: how many.
        prompt_time, generation_time: seconds of the steps in which nothing was emitted yet, and of the others.
        peak_memory: MLX's, in GB.
    """

    prompt_tokens: int = 0
    prompt_time: float = 0.0
    generation_tokens: int = 0
    generation_time: float = 0.0
    peak_memory: float = 0.0
    speculation: Speculation = Speculation()

    @property
    def prompt_tps(self) -> float:
        return self.prompt_tokens / self.prompt_time if self.prompt_time else 0.0

    @property
    def generation_tps(self) -> float:
        return self.generation_tokens / self.generation_time if self.generation_time else 0.0
