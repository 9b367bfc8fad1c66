"""The round as compiled functions: the same code as `round.py`, traced once per shape.

Shapes are fixed by the number of drafts and the capacity of the buffers; lengths are data. The key-value buffers go in
and come out, so that MLX can update them in place. Weights are captured by the trace, not copied.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx

from mtp_mlx.decoding.acceptance import Greedy, Rule
from mtp_mlx.decoding.drafts import Drafts
from mtp_mlx.decoding.round import Outcome, Round, State
from mtp_mlx.decoding.sampling import Controls, LogitsProcessor
from mtp_mlx.decoding.widths import Widths
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.drafter import Drafter
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.memo import weight_ids
from mtp_mlx.models.target import Target


class CompiledRound(Round):
    """Compiled rounds of one pair, without processors.

    Attributes:
        traces: how often a function was traced, for tests and statistics.
    """

    def __init__(
        self,
        model: Target,
        drafter: Drafter | None,
        rule: Rule | None = None,
        widths: Widths | None = None,
    ):
        super().__init__(model, drafter, rule, widths=widths)
        self._verify = mx.compile(self._trace_verify)
        self._draft: dict[int, Callable] = {}
        self.traces = 0

    def verify(
        self, cache: KVCache, state: State, histories: Sequence[list[int]] = (), controls: Controls | None = None
    ) -> tuple[Outcome, mx.array]:
        # No reference to the old buffers may outlive this call, or MLX would copy instead of updating in place.
        outcome, hidden, cache.arrays = self._verify(
            state.token, state.drafts.arrays, list(controls or ()), cache.arrays
        )
        return Outcome(*outcome), hidden

    def draft(
        self, cache: KVCache, token: mx.array, hidden: mx.array, num_tokens: int, controls: Controls | None = None
    ) -> State:
        if self.drafter is None or num_tokens == 0:
            return super().draft(cache, token, hidden, num_tokens)
        if num_tokens not in self._draft:
            self._draft[num_tokens] = mx.compile(lambda *arrays: self._trace_draft(num_tokens, *arrays))
        store = cache.beside
        own = [] if store is None else store.arrays
        drafts, own = self._draft[num_tokens](token, hidden, list(controls or ()), cache.arrays, own)
        if store is not None:
            store.arrays = own
        return State(token, hidden, Drafts(*drafts))

    def _trace_verify(
        self, token: mx.array, drafts: list[mx.array], controls: list[mx.array], arrays: list[mx.array]
    ) -> tuple:
        self.traces += 1
        cache = KVCache.over(self.model.config, arrays)
        state = State(token, None, Drafts(*drafts))
        outcome, hidden = super().verify(cache, state, (), Controls(*controls) if controls else None)
        return (outcome.decided, outcome.token, outcome.logits), hidden, cache.arrays

    def _trace_draft(
        self,
        num_tokens: int,
        token: mx.array,
        hidden: mx.array,
        controls: list[mx.array],
        arrays: list[mx.array],
        own: list[mx.array],
    ) -> tuple[list[mx.array], list[mx.array]]:
        """`own` are the arrays of the drafter's store, where it has one; they come out as drafting leaves them."""
        self.traces += 1
        cache = KVCache.over(self.model.config, arrays)
        cache.beside = KVCache.over(self.drafter.store_config, own) if own else None
        state = super().draft(cache, token, hidden, num_tokens, Controls(*controls) if controls else None)
        return state.drafts.arrays, cache.beside.arrays if own else []


def round_for(
    model: Target,
    drafter: Drafter | None,
    rule: Rule | None = None,
    processors: Sequence[Sequence[LogitsProcessor]] = (),
    widths: Widths | None = None,
) -> Round:
    """The rounds of this pair, compiled where the rule can be traced and no processor is called in between.

    Compiled ones are made once, kept with the model, and made again when weights have changed. Of eager ones only what
    they learned about depth is kept.
    """
    rule = rule or Greedy()
    compiles = rule.compiles and not processors
    # A trace captures the weights, and where the drafter stands: with others it would be wrong.
    captured = weight_ids(model, drafter), drafter.draft_position if isinstance(drafter, Gemma4Assistant) else None
    key = id(drafter), rule if compiles else None, widths
    known, round = model.memo.get(key, (None, None))
    if captured != known:
        round = CompiledRound(model, drafter, rule, widths) if compiles else Round(model, drafter, widths=widths)
        model.memo.put(key, (captured, round))
    return round if compiles else Round(model, drafter, rule, processors, round.depths, widths)
