"""How many drafts of a round are accepted."""

import mlx.core as mx


def count_agreeing(drafts: mx.array, chosen: mx.array) -> mx.array:
    """Length of the longest prefix of the drafts that equals what the target chose.

    Args:
        drafts: proposed ids [B, k].
        chosen: the target's ids after each of the k+1 rows [B, k+1]; column i is its choice where draft i stands.

    Returns:
        Accepted drafts of each slot [B], int32. The emitted tokens are then `chosen[b, : accepted[b] + 1]`.
    """
    agree = (drafts == chosen[:, :-1]).astype(mx.int32)
    return mx.cumprod(agree, axis=1).sum(axis=1)
