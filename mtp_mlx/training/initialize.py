"""A new drafter that starts from what its target knows already."""

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path

from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.gemma4_config import AssistantConfig
from mtp_mlx.models.target import Target
from mtp_mlx.pairing import check_pair
from mtp_mlx.training.clusters import cluster_centres, cluster_tokens


def new_drafter(target: Target, config: AssistantConfig, usage: mx.array | None = None) -> Gemma4Assistant:
    """A drafter for `target`, ready to be trained.

    It thinks in the main directions of the target's head: its embedding is a PCA of it, and the projections lead into
    and out of that subspace. The clustered head starts with clusters of that embedding. Matrices within the layers are
    random.

    Args:
        usage: how often the target chooses each token [V], for the clusters.

    Raises:
        UserError: the configuration does not fit the target.
    """
    check_pair(target.config, config)
    drafter = Gemma4Assistant(config)
    drafter.update(tree_map_with_path(_random, drafter.parameters()))
    read = input_table(target)
    written = read if target.config.tie_word_embeddings else head_table(target)
    basis = principal_directions(written, config.text.hidden_size)
    read_basis = basis if written is read else principal_directions(read, config.text.hidden_size)
    drafter.model.embed_tokens.weight = written @ basis
    # Gemma 4 scales what it reads to unit size, other targets read as little as their table holds.
    read_basis = read_basis / mx.sqrt(mx.square(target.model.embed(mx.arange(len(read)))).mean())
    drafter.pre_projection.weight = mx.concatenate([read_basis, basis], axis=0).T * 0.5**0.5
    drafter.post_projection.weight = basis
    if config.use_ordered_embeddings:
        _start_clusters(drafter, usage)
    mx.eval(drafter.parameters())
    return drafter


def input_table(target: Target) -> mx.array:
    """The embeddings of all tokens [V, D], float32."""
    return target.model.embed_tokens(mx.arange(target.config.vocab_size)).astype(mx.float32)


def head_table(target: Target) -> mx.array:
    """What an untied head multiplies hidden states with for the logits of all tokens [V, D], float32."""
    head = target.lm_head
    if isinstance(head, nn.QuantizedLinear):
        return mx.dequantize(
            head.weight, head.scales, head.get("biases"), head.group_size, head.bits, mode=head.mode
        ).astype(mx.float32)
    return head.weight.astype(mx.float32)


def principal_directions(table: mx.array, count: int) -> mx.array:
    """Orthonormal main directions of the rows of `table` [V, D], without centring -> [D, count]."""
    if count == table.shape[1]:
        return mx.eye(count)
    _, vectors = mx.linalg.eigh(table.T @ table, stream=mx.cpu)  # eigenvalues ascend
    return vectors[:, ::-1][:, :count]


def _random(path: str, array: mx.array) -> mx.array:
    """Linear layers at fan_in^-0.5. Attention scale is 1.0 in Gemma 4, so the query norm starts at head_dim^-0.5."""
    if path.endswith("q_norm.weight"):
        return mx.full(array.shape, array.shape[0] ** -0.5)
    if array.ndim == 2:
        return mx.random.normal(array.shape) * array.shape[1] ** -0.5
    return array


def _start_clusters(drafter: Gemma4Assistant, usage: mx.array | None) -> None:
    """Finds clusters in the embedding table, and brings the table to their order."""
    head, embedding = drafter.masked_embedding, drafter.model.embed_tokens
    table = embedding.weight
    head.token_ordering = cluster_tokens(table, head.num_centroids, usage)
    head.centroids.weight = cluster_centres(table, head.token_ordering, head.num_centroids, usage)
    embedding.weight = table[head.token_ordering]
