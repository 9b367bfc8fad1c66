"""A sequence of a batch from its insertion to its end: its prompt, what it emits, and what ends it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import mlx.core as mx
from mlx_lm.generate import StopSequences

from mtp_mlx.arguments import check_cache, room_for, token_ids
from mtp_mlx.batching.responses import BatchToken
from mtp_mlx.decoding.batch import Member
from mtp_mlx.decoding.round import Outcome
from mtp_mlx.decoding.sampling import LogitsProcessor, Sampler
from mtp_mlx.decoding.slots import take
from mtp_mlx.errors import MisuseError
from mtp_mlx.kv_cache import MAX_DRAFT_TOKENS, KVCache
from mtp_mlx.models.target import Target
from mtp_mlx.speculation import Speculation


@dataclass(eq=False)
class Request:
    """A sequence from `insert` to its end.

    Attributes:
        prompt: what its store did not hold when it came.
        segments: where the segments of the prompt end; the last at its end.
        limit: most tokens to emit.
        cache: its own store, until it joins the batch.
        known: the ids up to the end of the prompt, as far as they are known.
        stop: knows whether the sequences of ids that end it came.
        processed: prompt tokens that went through prefill.
        first, hidden: what prefill leaves.
        ids: what was emitted.
    """

    uid: int
    prompt: list[int]
    segments: list[int]
    limit: int
    cache: KVCache | None
    known: list[int]
    member: Member
    stop: StopSequences.Matcher
    processed: int = 0
    first: Outcome | None = None
    hidden: mx.array | None = None
    ids: list[int] = field(default_factory=list)
    speculation: Speculation = Speculation()

    def __post_init__(self):
        self.start = self.cache.offset + len(self.prompt)

    @property
    def all_tokens(self) -> list[int]:
        return self.known + self.ids

    def next_chunk(self, most: int) -> list[int]:
        """At most so many further tokens of the prompt, not beyond the end of a segment."""
        end = next((end for end in self.segments if end > self.processed), self.processed)
        return self.prompt[self.processed : min(self.processed + most, end)]

    def emit(
        self, tokens: list[int], accepted: int, logits: mx.array, verified: int | None = None
    ) -> tuple[list[BatchToken], Speculation]:
        """Notes tokens, as far as the sequence goes.

        Args:
            accepted: how many of them were drafts.
            logits: that they were chosen from [n, V].
            verified: drafts of the round; None where there was no round.

        Returns:
            What to hand out, and what speculation did just now.
        """
        tokens, reason = self._until_end(tokens)
        round = Speculation()
        if verified is not None:
            round = round.after(verified, min(accepted, len(tokens)))
        self.speculation += round
        self.ids += tokens
        emitted = [
            BatchToken(self.uid, token, logits[i], i < accepted, speculation=self.speculation)
            for i, token in enumerate(tokens)
        ]
        if reason:
            emitted[-1].finish_reason, emitted[-1].all_tokens = reason, self.all_tokens
        return emitted, round

    def _until_end(self, tokens: list[int]) -> tuple[list[int], str | None]:
        """As many of the tokens as are emitted, and why the sequence ends after them; None where it goes on."""
        for count, token in enumerate(tokens, start=1):
            if self.stop.advance(token):
                return tokens[:count], "stop"
            if len(self.ids) + count == self.limit:
                return tokens[:count], "length"
        return tokens, None


def make_request(
    model: Target,
    uid: int,
    segments: Sequence[Sequence[int]],
    max_tokens: int,
    given: KVCache | None,
    held: Sequence[int],
    sampler: Sampler | None,
    processors: list[LogitsProcessor],
    stop: StopSequences,
) -> Request:
    """Checks what was asked for, and gives it a store of its own.

    Args:
        given: a store with what precedes the prompt, which is left as it is.
        held: the ids in there, or none where they are not known.

    Raises:
        MisuseError: a prompt, limit or store that cannot be.
    """
    parts = [token_ids(part, model.config.vocab_size) for part in segments]
    ids = [token for part in parts for token in part]
    if given is not None:
        check_cache(given, model.config, "auto")
    # All have rings of one length, whatever rounds a given store was made for.
    cache = model.make_cache() if given is None else take(given, 0, max_draft_tokens=MAX_DRAFT_TOKENS)
    if len(held) not in (0, cache.offset):
        raise MisuseError(f"all_tokens must be the ids that its cache holds, {cache.offset}", given=f"{len(held)} ids")
    known = [*held, *ids]
    return Request(
        uid=uid,
        prompt=ids,
        segments=list(accumulate(map(len, parts))),
        limit=room_for(cache, ids, max_tokens),
        cache=cache,
        known=known,
        member=Member(sampler, processors, list(known), 0),
        stop=stop.matcher(),
    )
