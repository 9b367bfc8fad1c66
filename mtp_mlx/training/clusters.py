"""Divides a vocabulary into equal clusters for the clustered head."""

import mlx.core as mx

ITERATIONS = 8  # of balanced 2-means in each halving; assignments hardly change after five


def cluster_tokens(embedding: mx.array, num_clusters: int) -> mx.array:
    """Groups tokens whose embeddings point the same way, by halving groups again and again.

    Each halving is a balanced 2-means: tokens are sorted along the line between two centres and cut in the middle.
    So all clusters have the same size, which the head requires, in O(V · d · log clusters).

    Args:
        embedding: [V, d].
        num_clusters: a power of two that divides V.

    Returns:
        A permutation of the ids [V], int32; cluster c owns entries c · V / num_clusters and following.
    """
    if num_clusters & (num_clusters - 1) or embedding.shape[0] % num_clusters:
        raise ValueError(f"num_clusters must be a power of two that divides {embedding.shape[0]}: {num_clusters}")
    unit = embedding / mx.linalg.norm(embedding, axis=-1, keepdims=True)
    groups = mx.arange(embedding.shape[0], dtype=mx.int32)[None]
    while groups.shape[0] < num_clusters:
        groups = _halve(unit, groups)
        mx.eval(groups)
    return groups.flatten()


def _halve(points: mx.array, groups: mx.array) -> mx.array:
    """Groups of ids [G, n] -> [2G, n/2]."""
    G, n = groups.shape
    members = points[groups]
    line = members[:, 0] - members.mean(axis=1)
    for _ in range(ITERATIONS):
        order = mx.argsort((members @ line[..., None]).squeeze(-1), axis=-1)
        members = mx.take_along_axis(members, order[..., None], axis=1)
        groups = mx.take_along_axis(groups, order, axis=1)
        line = members[:, n // 2 :].mean(axis=1) - members[:, : n // 2].mean(axis=1)
    return groups.reshape(2 * G, n // 2)
