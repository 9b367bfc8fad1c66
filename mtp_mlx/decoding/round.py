"""The round: verify the drafts, accept, draft the next ones; all on the device, one synchronization.

Verification comes first. MLX updates a buffer in place only when nothing else still reads it; with the drafter reading
the key-value buffers *after* verification wrote them, no round ever copies one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mtp_mlx.decoding.acceptance import Drafts, Greedy, Pick, Rule
from mtp_mlx.decoding.depth import AutoDepth
from mtp_mlx.decoding.sampling import Controls, LogitsProcessor
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.steps import RowsStep


@dataclass
class State:
    """What one round leaves for the next, all on the device."""

    token: mx.array  # [B, 1], emitted but not in the cache yet
    hidden: mx.array  # [B, 1, D], the target's, where `token` came from
    drafts: Drafts  # proposed after `token`


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
        processors: (ids so far [n], logits [1, V]) -> logits [1, V], called with the context plain decoding has.
        depth: what was learned about how deep this pair should draft.
    """

    def __init__(
        self,
        model: Gemma4,
        drafter: Gemma4Assistant | None,
        rule: Rule | None = None,
        processors: Sequence[LogitsProcessor] = (),
        depth: AutoDepth | None = None,
    ):
        self.model, self.drafter = model, drafter
        self.rule, self.processors = rule or Greedy(), processors
        self.depth = depth or AutoDepth()

    def first(self, cache: KVCache, hidden: mx.array, prompt: list[int], controls: Controls | None) -> Outcome:
        """Chooses the first token from the prompt's last hidden state [B, 1, D], when the cache holds the prompt."""
        logits = self._process(self.model.logits(hidden), mx.array([prompt[-1:]]), prompt[:-1])
        none = Drafts(mx.zeros((hidden.shape[0], 0), mx.int32))
        return Outcome.of(*self.rule.settle(logits, none, cache.lengths - 1, controls), logits)

    def verify(
        self, cache: KVCache, state: State, history: list[int], controls: Controls | None = None
    ) -> tuple[Outcome, mx.array]:
        """One forward of the last token and its drafts; commits to `cache` what the target accepts.

        Returns:
            The outcome, and the target's hidden state [B, 1, D] where its last token came from.
        """
        rows = mx.concatenate([state.token, state.drafts.tokens], axis=1)
        hidden = self.model.model.forward(rows, RowsStep(cache, rows.shape[1]))
        logits = self._process(self.model.logits(hidden), rows, history)
        tokens, accepted = self.rule.settle(logits, state.drafts, cache.lengths, controls)
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

        return State(token, hidden, self.rule.propose(propose, cache.lengths, controls))

    def _process(self, logits: mx.array, rows: mx.array, history: list[int]) -> mx.array:
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
