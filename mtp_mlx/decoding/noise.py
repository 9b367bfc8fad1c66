"""Randomness that is a function of a request's key and of a place in its sequence, and of nothing else.

No state is carried: what a position draws does not depend on how deep the rounds before it drafted, on other requests,
or on when it is drawn. Built on MLX's keys (threefry, as in JAX), which are two words and may be computed.
"""

import mlx.core as mx

_PURPOSES = 3
DRAFT, ACCEPT, FINAL = range(_PURPOSES)

_split = mx.vmap(lambda key: mx.random.split(key, _PURPOSES))
_uniform = mx.vmap(lambda key: mx.random.uniform(shape=(), key=key))


def keys(root: mx.array, positions: mx.array) -> mx.array:
    """Keys [B, L, purposes, 2] of the absolute `positions` [B, L], from the root keys [B, 2] of the rows."""
    high = root[:, :1] + positions.astype(mx.uint32)
    pairs = mx.stack([high, mx.broadcast_to(root[:, 1:], high.shape)], axis=-1)
    return _split(pairs.reshape(-1, 2)).reshape(*positions.shape, _PURPOSES, 2)


def uniform(root: mx.array, positions: mx.array) -> mx.array:
    """Numbers in [0, 1) for each of the `positions` [B, L] and each purpose [B, L, purposes]."""
    return _uniform(keys(root, positions).reshape(-1, 2)).reshape(*positions.shape, _PURPOSES)


def gumbel(root: mx.array, positions: mx.array, ids: mx.array) -> mx.array:
    """Gumbel noise [B, L, N] of the tokens `ids` [N] or [B, L, N] at `positions` [B, L].

    A token has the same noise at a position whoever asks for it, a target over its vocabulary or a drafter over its
    candidates.
    """
    base = keys(root, positions)[:, :, DRAFT, None]  # [B, L, 1, 2]
    low = base[..., 1] + ids.astype(mx.uint32)
    pairs = mx.stack([mx.broadcast_to(base[..., 0], low.shape), low], axis=-1)
    u = _uniform(pairs.reshape(-1, 2)).reshape(low.shape)
    return -mx.log(-mx.log(u))
