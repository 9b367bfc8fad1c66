"""Gemma 4's MTP drafter: four query-only layers over the target's own keys and values.

It has no cache and needs no prefill. Its input is the target's embedding of the last token beside the target's hidden
state at the position that produced it; its output is the next token, and the hidden state for the step after. As in
transformers' `modeling_gemma4_assistant.py`.

With a clustered head, the rows of the embedding table lie in cluster order here, and in vocabulary order in checkpoints
(see `clustered_head.py`): `to_cluster_order` on the way in, `to_vocabulary_order` on the way out.
"""

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from mtp_mlx.errors import MisuseError
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.clustered_head import ClusteredHead
from mtp_mlx.models.drafter import Drafter, Pick
from mtp_mlx.models.gemma4 import Gemma4TextModel
from mtp_mlx.models.gemma4_config import AssistantConfig
from mtp_mlx.models.target import Target
from mtp_mlx.steps import DraftStep

DRAFT_POSITIONS = ("next", "last_cached")


class Gemma4Assistant(Drafter):
    """The drafter.

    Attributes:
        draft_position: which position the queries rotate to. "next", the index of the token that is drafted from
            (transformers, llama.cpp), or "last_cached", one less (mlx-vlm, vLLM, SGLang, Ollama).
    """

    def __init__(self, config: AssistantConfig, draft_position: str = "next"):
        super().__init__()
        self.config = config
        if draft_position not in DRAFT_POSITIONS:
            raise MisuseError(f"draft_position must be one of {', '.join(DRAFT_POSITIONS)}", given=repr(draft_position))
        self.draft_position = draft_position
        text = config.text
        self.model = Gemma4TextModel(text)
        self.pre_projection = nn.Linear(2 * config.backbone_hidden_size, text.hidden_size, bias=False)
        self.post_projection = nn.Linear(text.hidden_size, config.backbone_hidden_size, bias=False)
        if config.use_ordered_embeddings:
            self.masked_embedding = ClusteredHead(
                text.hidden_size, text.vocab_size, config.num_centroids, config.centroid_intermediate_top_k
            )

    def draft(
        self,
        target: Target,
        cache: KVCache,
        token: mx.array,
        hidden: mx.array,
        num_tokens: int,
        pick: Pick | None = None,
    ) -> mx.array:
        """Proposes the tokens after `token`; see `Drafter.draft`."""
        step = DraftStep(cache, self.draft_position)
        drafts = []
        for _ in range(num_tokens):
            h, hidden = self.step(target, token, hidden, step)
            token = self.argmax(h) if pick is None else pick(self, h)
            drafts.append(token)
        return mx.concatenate(drafts, axis=1) if drafts else mx.zeros((token.shape[0], 0), token.dtype)

    def step(self, target: Target, token: mx.array, hidden: mx.array, step: DraftStep) -> tuple[mx.array, mx.array]:
        """One draft step: (token [B, 1], hidden [B, 1, backbone]) -> (own hidden [B, 1, D], next hidden)."""
        x = self.pre_projection(mx.concatenate([target.model.embed(token), hidden], axis=-1))
        h = self.model.norm(self.model.run(range(len(self.model.layers)), x, None, step))
        return h, self.post_projection(h)

    def rows_of(self, tokens: mx.array) -> mx.array:
        """Which rows of the drafter's embedding table belong to `tokens` [...]."""
        if self.config.use_ordered_embeddings:
            return mx.argsort(self.masked_embedding.token_ordering)[tokens]
        return tokens

    def argmax(self, h: mx.array) -> mx.array:
        """The most likely token of hidden states [B, L, D] -> ids [B, L]."""
        if self.config.use_ordered_embeddings:
            return self.masked_embedding.argmax(h, self.model.embed_tokens)
        return mx.argmax(self.model.embed_tokens.as_linear(h), axis=-1)

    def candidates(self, h: mx.array) -> tuple[mx.array | None, mx.array]:
        if self.config.use_ordered_embeddings:
            return self.masked_embedding.candidates(h, self.model.embed_tokens)
        return None, self.model.embed_tokens.as_linear(h)

    def logits(self, h: mx.array) -> mx.array:
        """Logits over the whole vocabulary [B, L, V], for reference."""
        if self.config.use_ordered_embeddings:
            return self.masked_embedding.dense(h, self.model.embed_tokens)
        return self.model.embed_tokens.as_linear(h)


def to_cluster_order(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """A drafter's weights, from how checkpoints have them to how `Gemma4Assistant` does."""
    return _with_reordered_table(weights, lambda token_ordering: token_ordering)


def to_vocabulary_order(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """A drafter's weights, from how `Gemma4Assistant` has them to how checkpoints do."""
    return _with_reordered_table(weights, mx.argsort)


def _with_reordered_table(weights: dict[str, mx.array], order: Callable[[mx.array], mx.array]) -> dict[str, mx.array]:
    token_ordering = weights.get("masked_embedding.token_ordering")
    if token_ordering is None:
        return weights
    rows = order(token_ordering)  # of the table, or of its packed weights, scales and biases where it is quantized
    return {name: array[rows] if name.startswith("model.embed_tokens.") else array for name, array in weights.items()}
