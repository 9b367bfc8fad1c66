"""The round: verify the drafts, accept, draft the next ones; all on the device, one synchronization.

Verification comes first. MLX updates a buffer in place only when nothing else still reads it; with the drafter reading
the key-value buffers *after* verification wrote them, no round ever copies one.
"""

from dataclasses import dataclass

import mlx.core as mx

from mtp_mlx.decoding.acceptance import count_agreeing
from mtp_mlx.decoding.sampling import Choice
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.steps import RowsStep


@dataclass
class State:
    """What one round leaves for the next, all on the device."""

    token: mx.array  # [B, 1], emitted but not in the cache yet
    hidden: mx.array  # [B, 1, D], the target's, where `token` came from
    drafts: mx.array  # [B, k], proposed after `token`


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
        choice: how the target chooses tokens.
    """

    def __init__(self, model: Gemma4, drafter: Gemma4Assistant | None, choice: Choice):
        self.model, self.drafter, self.choice = model, drafter, choice

    def first(self, hidden: mx.array, prompt: list[int]) -> Outcome:
        """Chooses the first token from the prompt's last hidden state [1, 1, D]."""
        logits = self.choice.process(self.model.logits(hidden), mx.array([prompt[-1:]]), prompt[:-1])
        tokens = self.choice.choose(logits)
        return Outcome.of(tokens, mx.zeros((tokens.shape[0],), mx.int32), logits)

    def verify(self, cache: KVCache, state: State, history: list[int]) -> tuple[Outcome, mx.array]:
        """One forward of the last token and its drafts; commits to `cache` what the target agrees with.

        Returns:
            The outcome, and the target's hidden state [B, 1, D] where its last token came from.
        """
        rows = mx.concatenate([state.token, state.drafts], axis=1)
        hidden = self.model.model.forward(rows, RowsStep(cache, rows.shape[1]))
        logits = self.choice.process(self.model.logits(hidden), rows, history)
        tokens = self.choice.choose(logits)
        accepted = count_agreeing(state.drafts, tokens)
        cache.lengths = cache.lengths + accepted + 1
        return Outcome.of(tokens, accepted, logits), mx.take_along_axis(hidden, accepted[:, None, None], axis=1)

    def draft(self, cache: KVCache, token: mx.array, hidden: mx.array, num_tokens: int) -> State:
        """The next round's state: `token` [B, 1], the target's `hidden` [B, 1, D] it came from, and its drafts."""
        if self.drafter is None or num_tokens == 0:
            return State(token, hidden, mx.zeros((token.shape[0], 0), token.dtype))
        return State(token, hidden, self.drafter.draft(self.model, cache, token, hidden, num_tokens))
