"""Token ids of one generation: prefill, then round after round."""

import time
from collections.abc import Collection, Iterator
from typing import NamedTuple

import mlx.core as mx

from mtp_mlx.decoding.depth import Depth
from mtp_mlx.decoding.prefill import PREFILL_STEP_SIZE, Progress, prefill
from mtp_mlx.decoding.round import Outcome, Round, State
from mtp_mlx.decoding.sampling import Controls
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.speculation import Speculation


class Emitted(NamedTuple):
    """One emitted token, the logits [V] it was chosen from, and the statistics up to its round.

    Attributes:
        place: of the token in its round, from 0: of an accepted draft, its draft position.
        corrects_draft: whether the target put it in the place of a draft it rejected.
    """

    token: int
    logits: mx.array
    from_draft: bool
    speculation: Speculation
    place: int = 0
    corrects_draft: bool = False


class TokenStream:
    """Emits tokens, dispatching each round before the tokens of the last one are handed out.

    However iteration ends (limit, stop id, the consumer closing it, an exception), `cache` then holds the prompt and
    every emitted token except the last. Where nothing was emitted, it holds its first `cache.offset` tokens.

    Args:
        round: the mechanism, eager or compiled.
        cache: receives the prompt and what is emitted.
        prompt: token ids that are not in the cache yet, at least one.
        max_tokens: how many to emit at most, at least one.
        depth: decides how many tokens each round drafts.
        stop_ids: ids that end the stream; the id itself is emitted.
        controls: the values of the round's rule, where it has any.
    """

    def __init__(
        self,
        round: Round,
        cache: KVCache,
        prompt: list[int],
        *,
        max_tokens: int,
        depth: Depth,
        stop_ids: Collection[int] = (),
        prefill_step_size: int = PREFILL_STEP_SIZE,
        progress: Progress | None = None,
        controls: Controls | None = None,
    ):
        self.round, self.cache, self.prompt = round, cache, prompt
        self.max_tokens = self.remaining = max_tokens
        self.depth, self.stop_ids = depth, stop_ids
        self.prefill_step_size, self.progress, self.controls = prefill_step_size, progress, controls
        self.history = list(prompt)
        self.speculation = Speculation()

    def __iter__(self) -> Iterator[Emitted]:
        emitted, start = 0, self.cache.offset + len(self.prompt)
        try:
            outcome, hidden = self.prefill()
            tokens = self._cut(outcome.read()[0])
            emitted += 1
            # The first token does not wait for drafts, nor for the tracing of the first round.
            yield Emitted(tokens[0], outcome.logits[0, 0], False, self.speculation)
            if self._ended(tokens):
                return
            outcome, state = self._dispatch(self._draft(outcome, hidden, self.remaining - 1))
            while outcome is not None:
                tokens, accepted, logits = self._finish(outcome, state)
                outcome, state = (None, None) if self._ended(tokens) else self._dispatch(state)
                for i, token in enumerate(tokens):
                    emitted += 1
                    corrects = accepted <= i < logits.shape[1] - 1  # otherwise it is the bonus token
                    yield Emitted(token, logits[0, i], i < accepted, self.speculation, i, corrects)
        finally:
            if emitted:
                self.cache.set_length(start + emitted - 1)
            else:  # interrupted in a chunk of the prompt, which may have overwritten what the rings held
                self.cache.rewind(self.cache.offset)

    def prefill(self) -> tuple[Outcome, mx.array]:
        """Processes the prompt and chooses the first token; also gives the hidden state [1, 1, D] it came from."""
        prompt = mx.array([self.prompt])
        drafter = self.round.drafter
        if drafter is not None:
            drafter.join(self.cache)
        hidden = prefill(self.round.model, prompt, self.cache, self.prefill_step_size, self.progress, drafter)
        outcome = self.round.first(self.cache, hidden, self.prompt, self.controls)
        mx.async_eval(outcome.decided, outcome.logits, hidden, self.cache.arrays)
        return outcome, hidden

    def _ended(self, tokens: list[int]) -> bool:
        return self.remaining == 0 or tokens[-1] in self.stop_ids

    def _draft(self, outcome: Outcome, hidden: mx.array, most: int) -> State:
        return self.round.draft(self.cache, outcome.token, hidden, self._depth(most), self.controls)

    def _depth(self, most: int) -> int:
        """Drafts for the next round: the policy's, but never more than `most` or than the rings have room for."""
        return max(0, min(self.depth.choose(), most, self.cache.max_draft_tokens))

    def _dispatch(self, state: State) -> tuple[Outcome, State]:
        """Starts verifying `state` and drafting after it, without waiting."""
        self._dispatched = time.perf_counter()
        state.drafts = state.drafts.first(self.remaining - 1)  # the target adds one: never past the limit
        self.cache.reserve(self.round.rows(1 + state.drafts.count))
        outcome, hidden = self.round.verify(self.cache, state, [self.history[:-1]], self.controls)
        # The device verifies while the host builds the graph that drafts.
        mx.async_eval(outcome.decided, outcome.token, outcome.logits, hidden, self.cache.arrays)
        state = self._draft(outcome, hidden, self.remaining - 2)  # this round emits one at least, the next another
        mx.async_eval(state.drafts.arrays)
        return outcome, state

    def _finish(self, outcome: Outcome, state: State) -> tuple[list[int], int, mx.array]:
        """Waits for a round; what it emits, how many of those were drafts, and the logits of its rows [1, k+1, V]."""
        tokens, accepted = outcome.read()
        verified, drafted = outcome.verified, state.drafts.count
        self.depth.observe(verified, [accepted], drafted, time.perf_counter() - self._dispatched)
        self.cache.offset += accepted + 1
        tokens = self._cut(tokens)
        accepted = min(accepted, len(tokens))
        self.speculation = self.speculation.after(verified, accepted)
        return tokens, accepted, outcome.logits

    def _cut(self, tokens: list[int]) -> list[int]:
        """Ends the tokens after a stop id, and counts them."""
        stop = next((i for i, token in enumerate(tokens) if token in self.stop_ids), len(tokens))
        tokens = tokens[: stop + 1]
        self.history += tokens
        self.remaining -= len(tokens)
        return tokens
