"""A sequence of a batch from its insertion to its end, the tokens that are handed out for it, and statistics of all."""

from dataclasses import dataclass, field
from functools import cached_property

import mlx.core as mx

from mtp_mlx.decoding.batch import Member
from mtp_mlx.decoding.round import Outcome
from mtp_mlx.decoding.sampling import log_softmax
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.speculation import Speculation


@dataclass
class BatchToken:
    """One emitted token of one sequence: mlx-lm's fields, and what speculation did.

    Attributes:
        uid: of the sequence.
        token: its id.
        logits: the target's logits [V] that it was chosen from.
        logprobs: log-probabilities [V] there; computed when asked for.
        from_draft: whether the drafter proposed it.
        finish_reason: "stop" or "length" with the last token, None before.
        prompt_cache: with the last token, a store that holds the prompt and every emitted token but the last.
        all_tokens: with the last token, the prompt and everything emitted.
        speculation: rounds, drafted, accepted, up to this token's round.
    """

    uid: int
    token: int
    logits: mx.array
    from_draft: bool
    finish_reason: str | None = None
    prompt_cache: KVCache | None = None
    all_tokens: list[int] | None = None
    speculation: Speculation = Speculation()

    @cached_property
    def logprobs(self) -> mx.array:
        return log_softmax(self.logits)


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


@dataclass(eq=False)
class Request:
    """A sequence from `insert` to its end.

    Attributes:
        prompt: what its store did not hold when it came.
        limit: most tokens to emit.
        cache: its own store, until it joins the batch.
        known: the ids up to the end of the prompt, as far as they are known.
        processed: prompt tokens that went through prefill.
        first, hidden: what prefill leaves.
        ids: what was emitted.
    """

    uid: int
    prompt: list[int]
    limit: int
    cache: KVCache | None
    known: list[int]
    member: Member
    processed: int = 0
    first: Outcome | None = None
    hidden: mx.array | None = None
    ids: list[int] = field(default_factory=list)
    speculation: Speculation = Speculation()

    def __post_init__(self):
        self.start = self.cache.offset + len(self.prompt)
