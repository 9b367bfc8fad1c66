"""The drafter's clustered head: logits for the tokens of the few best clusters only.

The vocabulary is divided into equal clusters, each with a centroid. A hidden state is scored against the centroids
(2,048 on E2B), and only the tokens of the best clusters (32 of them: 4,096 of 262,144 ids) get logits. Nothing of
vocabulary size is built while drafting. Same function as transformers' `Gemma4AssistantMaskedEmbedder`.
"""

import mlx.core as mx
import mlx.nn as nn


class ClusteredHead(nn.Module):
    """Args: the drafter's hidden size, the vocabulary size, the number of clusters, and how many of them to score."""

    def __init__(self, hidden_size: int, vocab_size: int, num_centroids: int, top_k: int):
        super().__init__()
        self.vocab_size, self.num_centroids, self.top_k = vocab_size, num_centroids, top_k
        self.centroids = nn.Linear(hidden_size, num_centroids, bias=False)
        self.token_ordering = mx.arange(vocab_size, dtype=mx.int32)  # cluster c owns a run of equal length

    def candidates(self, h: mx.array, embedding: nn.Module) -> tuple[mx.array, mx.array]:
        """The ids of the best clusters and their logits, for hidden states `h` [..., D]: both [..., top_k · size]."""
        best = mx.argpartition(self.centroids(h), kth=-self.top_k, axis=-1)[..., -self.top_k :]
        ids = self.token_ordering.reshape(self.num_centroids, -1)[best].flatten(-2)
        rows = embedding(ids)  # gathers, and dequantizes where quantized, only the candidates
        return ids, (rows @ h[..., None]).squeeze(-1)

    def argmax(self, h: mx.array, embedding: nn.Module) -> mx.array:
        """The best candidate of each hidden state [..., D] -> ids [...]; the lowest id where logits tie."""
        ids, logits = self.candidates(h, embedding)
        best = logits == logits.max(axis=-1, keepdims=True)
        return mx.where(best, ids, self.vocab_size).min(axis=-1)

    def dense(self, h: mx.array, embedding: nn.Module) -> mx.array:
        """Logits over the whole vocabulary [..., V], for reference: ids outside the clusters lie 1 below the lowest."""
        ids, logits = self.candidates(h, embedding)
        floor = logits.min(axis=-1, keepdims=True) - 1
        everything = mx.broadcast_to(floor, (*h.shape[:-1], self.vocab_size))
        return mx.put_along_axis(everything, ids, logits, axis=-1)
