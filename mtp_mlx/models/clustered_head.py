"""The drafter's clustered head: logits for the tokens of the few best clusters only.

The vocabulary is divided into equal clusters, each with a centroid. A hidden state is scored against the centroids
(2,048 on E2B), and only the tokens of the best clusters (32 of them: 4,096 of 262,144 ids) get logits. Nothing of
vocabulary size is built while drafting. Same function as transformers' `Gemma4AssistantMaskedEmbedder`.

The embedding table lies in cluster order: row r belongs to token `token_ordering[r]`. A cluster is then one block of
memory, which the matrix product reads where it lies; gathering 4,096 scattered rows first takes longer than the rest.
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

    @property
    def cluster_size(self) -> int:
        return self.vocab_size // self.num_centroids

    def candidates(self, h: mx.array, embedding: nn.Module) -> tuple[mx.array, mx.array]:
        """The ids of the best clusters and their logits, both [..., top_k · size].

        Args:
            h: hidden states [..., D].
            embedding: the table in cluster order, quantized or not.
        """
        best = mx.argpartition(self.centroids(h), kth=-self.top_k, axis=-1)[..., -self.top_k :]
        ids = self._by_cluster(self.token_ordering[:, None])[best]
        return ids.flatten(-3), self._logits(h, embedding, best).flatten(-3)

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

    def _logits(self, h: mx.array, embedding: nn.Module, clusters: mx.array) -> mx.array:
        """Products of `h` [..., D] with the rows of its `clusters` [..., top_k] -> [..., top_k, 1, size]."""
        table = {name: self._by_cluster(rows) for name, rows in embedding.parameters().items()}
        # Where dtypes differ, MLX would convert the whole table in each step: the hidden state is converted instead.
        dtypes = [rows.dtype for rows in table.values() if mx.issubdtype(rows.dtype, mx.floating)]
        x = h[..., None, None, :].astype(dtypes[0] if dtypes else h.dtype)
        if isinstance(embedding, nn.QuantizedEmbedding):
            mode = {"group_size": embedding.group_size, "bits": embedding.bits, "mode": embedding.mode}
            packed, scales, biases = table["weight"], table["scales"], table.get("biases")
            return mx.gather_qmm(x, packed, scales, biases, rhs_indices=clusters, **mode)
        rows = table["weight"].swapaxes(-1, -2)
        if x.dtype == mx.float32 or mx.default_device().type == mx.DeviceType.gpu:
            return mx.gather_mm(x, rows, rhs_indices=clusters)
        return x @ rows[clusters]  # on a CPU, MLX's gather_mm takes nothing but float32

    def _by_cluster(self, rows: mx.array) -> mx.array:
        """[V, n] -> [clusters, size, n]; no copy."""
        return rows.reshape(self.num_centroids, self.cluster_size, -1)
