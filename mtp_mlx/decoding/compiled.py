"""The round as compiled functions: the same code as `round.py`, traced once per shape.

Shapes are fixed by the number of drafts and the capacity of the buffers; lengths are data. The key-value buffers go in
and come out, so that MLX can update them in place. Weights are captured by the trace, not copied.
"""

from collections.abc import Callable

import mlx.core as mx

from mtp_mlx.decoding.depth import AutoDepth
from mtp_mlx.decoding.round import Outcome, Round, State
from mtp_mlx.decoding.sampling import Choice
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.memo import weight_ids


class CompiledRound(Round):
    """Compiled rounds of one pair, greedy.

    Attributes:
        traces: how often a function was traced, for tests and statistics.
        depth: what was learned about how deep this pair should draft, kept from one generation to the next.
    """

    def __init__(self, model: Gemma4, drafter: Gemma4Assistant | None):
        super().__init__(model, drafter, Choice())
        self._verify = mx.compile(self._trace_verify)
        self._draft: dict[int, Callable] = {}
        self.traces = 0
        self.depth = AutoDepth()

    def verify(self, cache: KVCache, state: State, history: list[int]) -> tuple[Outcome, mx.array]:
        # No reference to the old buffers may outlive this call, or MLX would copy instead of updating in place.
        outcome, hidden, cache.arrays = self._verify(state.token, state.drafts, cache.arrays)
        return Outcome(*outcome), hidden

    def draft(self, cache: KVCache, token: mx.array, hidden: mx.array, num_tokens: int) -> State:
        if self.drafter is None or num_tokens == 0:
            return super().draft(cache, token, hidden, num_tokens)
        if num_tokens not in self._draft:
            self._draft[num_tokens] = mx.compile(lambda *arrays: self._trace_draft(num_tokens, *arrays))
        return State(token, hidden, self._draft[num_tokens](token, hidden, cache.arrays))

    def _trace_verify(self, token: mx.array, drafts: mx.array, arrays: list[mx.array]) -> tuple:
        self.traces += 1
        cache = KVCache.over(self.model.config, arrays)
        outcome, hidden = super().verify(cache, State(token, None, drafts), [])
        return (outcome.decided, outcome.token, outcome.logits), hidden, cache.arrays

    def _trace_draft(self, num_tokens: int, token: mx.array, hidden: mx.array, arrays: list[mx.array]) -> mx.array:
        self.traces += 1
        cache = KVCache.over(self.model.config, arrays)
        return super().draft(cache, token, hidden, num_tokens).drafts


def compiled_round(model: Gemma4, drafter: Gemma4Assistant | None) -> CompiledRound:
    """The compiled rounds of this pair: made once, kept with the model, made again when weights have changed."""
    # A trace captures the weights, and where the drafter stands: with others it would be wrong.
    captured = weight_ids(model, drafter), drafter.draft_position if isinstance(drafter, Gemma4Assistant) else None
    known, round = model.memo.get(id(drafter), (None, None))
    if captured != known:
        round = CompiledRound(model, drafter)
        model.memo.put(id(drafter), (captured, round))
    return round
