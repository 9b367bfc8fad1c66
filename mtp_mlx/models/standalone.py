"""A stand-alone drafter: a small target of its own, with its own embedding, key-value store and prefill.

What speculative decoding began with (Leviathan et al. 2023, "Fast inference from transformers via speculative
decoding"), and what an MTP drafter is to be compared with. Its store stands beside the target's (`KVCache.beside`), so
that rounds carry both; it is always written from where the target is, so rejected drafts need no undoing.

What it has not read (tokens of rounds that drafted nothing) it attends to as whatever its store holds there: that can
cost accepted drafts, never correctness.
"""

import mlx.core as mx

from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.config import DecoderConfig
from mtp_mlx.models.drafter import Drafter, Pick
from mtp_mlx.models.target import Target
from mtp_mlx.steps import RowsStep


class StandaloneDrafter(Drafter):
    """Drafts with `model`, which has the vocabulary of the target."""

    def __init__(self, model: Target):
        super().__init__()
        self.model = model

    @property
    def store_config(self) -> DecoderConfig:
        return self.model.config

    def join(self, cache: KVCache) -> None:
        """Gives the target's `cache` a store for this drafter, unless it has one."""
        if cache.beside is None or cache.beside.config != self.model.config:
            cache.beside = KVCache(self.model.config, cache.slots, cache.max_draft_tokens)

    def read(self, tokens: mx.array, cache: KVCache) -> None:
        """Reads prompt tokens [B, L] that the target's `cache` has just taken in."""
        store = cache.beside
        store.set_length(cache.offset - tokens.shape[1])
        self.model.model.prefill(tokens, store)

    def draft(
        self,
        target: Target,
        cache: KVCache,
        token: mx.array,
        hidden: mx.array,
        num_tokens: int,
        pick: Pick | None = None,
    ) -> mx.array:
        """Proposes the tokens after `token` [B, 1]; see `Drafter.draft`. It does not look at `hidden`."""
        store, drafts = cache.beside, []
        for j in range(num_tokens + 1):  # the last one is read too: where all are accepted, it is needed next time
            store.lengths = cache.lengths + j
            h = self.model.model.forward(token, RowsStep(store, 1))
            if j < num_tokens:
                token = self.argmax(h) if pick is None else pick(self, h)
                drafts.append(token)
        return mx.concatenate(drafts, axis=1)

    def argmax(self, h: mx.array) -> mx.array:
        """The most likely token of hidden states [B, L, D] -> ids [B, L]."""
        return mx.argmax(self.model.logits(h), axis=-1)

    def candidates(self, h: mx.array) -> tuple[None, mx.array]:
        return None, self.model.logits(h)
