"""What every drafter is: an MTP drafter, which reads what its target has computed, or a stand-alone one."""

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.config import DecoderConfig
from mtp_mlx.models.target import Target

# Chooses a draft from a drafter and its hidden state [B, 1, d]: its id [B, 1].
Pick = Callable[["Drafter", mx.array], mx.array]


class Drafter(nn.Module):
    """Proposes the tokens after the last one.

    Attributes:
        store_config: of the key-value store that it keeps beside the target's; None where it keeps none.
    """

    store_config: DecoderConfig | None = None

    def join(self, cache: KVCache) -> None:
        """Makes the target's `cache` ready to draft after. Without a store of its own there is nothing to do."""

    def read(self, tokens: mx.array, cache: KVCache) -> None:
        """Takes in prompt tokens [B, L] that the target's `cache` has just taken in. Without a store, nothing to do."""

    def draft(
        self,
        target: Target,
        cache: KVCache,
        token: mx.array,
        hidden: mx.array,
        num_tokens: int,
        pick: Pick | None = None,
    ) -> mx.array:
        """Proposes the tokens after `token`.

        Args:
            target: the model whose embedding and keys and values may be read.
            cache: the target's store; it holds everything before `token`.
            token: last token of each slot, [B, 1].
            hidden: the target's hidden state after its final norm where `token` came from, [B, 1, D].
            num_tokens: how many to propose.
            pick: chooses each; None takes the likeliest.

        Returns:
            Token ids [B, num_tokens].
        """
        raise NotImplementedError

    def candidates(self, h: mx.array) -> tuple[mx.array | None, mx.array]:
        """What may be drafted from hidden states [B, L, d]: ids and their logits, both [B, L, C].

        Ids are None where every token may: C is the vocabulary then.
        """
        raise NotImplementedError
