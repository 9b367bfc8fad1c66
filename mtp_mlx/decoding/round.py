"""The round: verify the drafts, accept, draft the next ones; all on the device, one synchronization.

Verification comes first. MLX updates a buffer in place only when nothing else still reads it; with the drafter reading
the key-value buffers *after* verification wrote them, no round ever copies one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mtp_mlx.decoding.acceptance import Greedy, Rule
from mtp_mlx.decoding.depth import MOST, AutoDepth
from mtp_mlx.decoding.drafts import Drafts
from mtp_mlx.decoding.sampling import Controls, LogitsProcessor
from mtp_mlx.decoding.widths import Widths
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.drafter import Drafter, Pick
from mtp_mlx.models.target import Target
from mtp_mlx.steps import RowsStep


@dataclass
class State:
    """What one round leaves for the next, all on the device."""

    token: mx.array  # [B, 1], emitted but not in the cache yet
    hidden: mx.array  # [B, 1, D], the target's, where `token` came from
    drafts: Drafts | None  # proposed after `token`; None where that is still to be done

    def rows(self, which: Sequence[int]) -> "State":
        """Those of some slots, in that order."""
        index = mx.array(which)
        drafts = None if self.drafts is None else Drafts(*(array[index] for array in self.drafts.arrays))
        return State(self.token[index], self.hidden[index], drafts)


@dataclass
class Outcome:
    """What a round decided, all on the device."""

    decided: mx.array  # [B, k+2]: the number of accepted drafts, then the target's choice after each row
    token: mx.array  # [B, 1]: the last emitted one, which is not in the cache yet
    logits: mx.array  # [B, k+1, V], which the choices were made from

    @classmethod
    def of(cls, tokens: mx.array, accepted: mx.array, logits: mx.array) -> "Outcome":
        """From the choices [B, k+1] and the accepted counts [B]: `tokens[b, : accepted[b] + 1]` are emitted."""
        decided = mx.concatenate([accepted[:, None], tokens], axis=1)  # one array, so that reading it is one wait
        return cls(decided, mx.take_along_axis(tokens, accepted[:, None], axis=1), logits)

    @property
    def verified(self) -> int:
        """How many drafts were verified."""
        return self.decided.shape[1] - 2

    def read(self) -> tuple[list[int], int]:
        """Emitted tokens and number of accepted drafts of the only slot: the round's one synchronization."""
        accepted, *tokens = self.decided[0].tolist()
        return tokens[: accepted + 1], accepted


class Round:
    """Eager rounds of one pair; `CompiledRound` does the same faster.

    Args:
        model: the target.
        drafter: or None, for plain decoding.
        rule: how drafts are proposed and accepted.
        processors: of each slot, (ids so far [n], logits [1, V]) -> logits [1, V], called with the context plain
            decoding has; empty where no slot has any.
        depths: what was learned about how deep this pair should draft, by number of slots.
        widths: how many rows to compute for those that are wanted, where results must be exact.
    """

    def __init__(
        self,
        model: Target,
        drafter: Drafter | None,
        rule: Rule | None = None,
        processors: Sequence[Sequence[LogitsProcessor]] = (),
        depths: dict[int, AutoDepth] | None = None,
        widths: Widths | None = None,
    ):
        self.model, self.drafter, self.widths = model, drafter, widths
        self.rule, self.processors = rule or Greedy(), processors
        self.depths = {} if depths is None else depths

    def rows(self, wanted: int) -> int:
        """How many rows a pass computes."""
        return wanted if self.widths is None else self.widths.computed[wanted - 1]

    def depth(self, slots: int = 1) -> AutoDepth:
        """The policy for rounds of so many slots: more rows cost more, and on a mixture of experts a lot more."""
        if slots not in self.depths:
            most = MOST if self.widths is None else self.widths.most - 1
            nearest = min(self.depths, key=lambda known: max(known, slots) / min(known, slots), default=None)
            self.depths[slots] = AutoDepth(most) if nearest is None else self.depths[nearest].for_other_load()
        return self.depths[slots]

    def first(self, cache: KVCache, hidden: mx.array, prompt: list[int], controls: Controls | None = None) -> Outcome:
        """Chooses the first token from the prompt's last hidden state [B, 1, D], when the cache holds the prompt."""
        logits = self._process(self.model.logits(hidden), mx.array([prompt[-1:]]), [prompt[:-1]])
        none = Drafts(mx.zeros((hidden.shape[0], 0), mx.int32))
        return Outcome.of(*self.rule.settle(logits, none, cache.lengths[:, None], controls), logits)

    def verify(
        self, cache: KVCache, state: State, histories: Sequence[list[int]] = (), controls: Controls | None = None
    ) -> tuple[Outcome, mx.array]:
        """One forward of the last token and its drafts; commits to `cache` what the target accepts.

        Args:
            histories: the ids before `state.token` of each slot, for processors.
            controls: the values of the rule, where it has any.

        Returns:
            The outcome, and the target's hidden state [B, 1, D] where its last token came from.
        """
        rows = mx.concatenate([state.token, state.drafts.tokens], axis=1)
        computed = rows if self.widths is None else self.widths.pad(rows)
        hidden = self.model.model.forward(computed, RowsStep(cache, computed.shape[1]))
        logits = self._process(self.model.logits(hidden)[:, : rows.shape[1]], rows, histories)
        tokens, accepted = self.rule.settle(logits, state.drafts, _following(cache, rows.shape[1]), controls)
        cache.lengths = cache.lengths + accepted + 1
        return Outcome.of(tokens, accepted, logits), mx.take_along_axis(hidden, accepted[:, None, None], axis=1)

    def draft(
        self, cache: KVCache, token: mx.array, hidden: mx.array, num_tokens: int, controls: Controls | None = None
    ) -> State:
        """The next round's state: `token` [B, 1], the target's `hidden` [B, 1, D] it came from, and its drafts."""
        if self.drafter is None or num_tokens == 0:
            return State(token, hidden, Drafts(mx.zeros((token.shape[0], 0), token.dtype)))

        def propose(pick: Pick | None) -> mx.array:
            return self.drafter.draft(self.model, cache, token, hidden, num_tokens, pick)

        return State(token, hidden, self.rule.propose(propose, _following(cache, num_tokens), controls))

    def _process(self, logits: mx.array, rows: mx.array, histories: Sequence[list[int]]) -> mx.array:
        """Applies each slot's processors to its `logits` [B, L, V] of the input ids `rows` [B, L] after its history."""
        if not self.processors:
            return logits
        slots = zip(self.processors, logits, rows, histories, strict=True)
        return mx.stack([_processed(*slot) for slot in slots])


def _following(cache: KVCache, count: int) -> mx.array:
    """Positions [B, count] after that of the token which the cache does not hold yet."""
    return cache.lengths[:, None] + 1 + mx.arange(count)


def _processed(processors: Sequence[LogitsProcessor], logits: mx.array, row: mx.array, history: list[int]) -> mx.array:
    """The logits [L, V] of one slot's ids `row` [L]."""
    context = mx.concatenate([mx.array(history, row.dtype), row])
    processed = []
    for i in range(row.shape[0]):
        each = logits[i : i + 1]
        for processor in processors:
            each = processor(context[: len(history) + i + 1], each)
        processed.append(each)
    return mx.concatenate(processed)
