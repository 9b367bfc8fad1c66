"""Moving sequences between key-value stores: into the slots of a batch, and out of them again.

Everything is evaluated before it is handed out: an unevaluated copy would hold the buffers it reads, and the next round
could not update them in place.
"""

from collections.abc import Sequence

import mlx.core as mx

from mtp_mlx.kv_cache import KVCache


def take(cache: KVCache, slot: int, offset: int | None = None) -> KVCache:
    """A store of its own with one slot of `cache`, which it leaves as it is.

    Args:
        offset: how many tokens of the slot to keep; all of them by default. At most a round's rows may be given up.
    """
    taken = KVCache(cache.config, 1, cache.max_draft_tokens)
    for mine, theirs in zip(taken.layers, cache.layers, strict=True):
        if theirs.state:
            mine.state = [mx.contiguous(array[slot : slot + 1]) for array in theirs.state]
    taken.written, taken.capacity = cache.written, cache.capacity
    taken.set_length(cache.lengths[slot].item() if offset is None else offset)
    mx.eval(taken.arrays)
    return taken


def batch_of(caches: Sequence[KVCache | None]) -> KVCache:
    """A store with a slot for each of the one-slot `caches`; None makes an empty slot."""
    given = [cache for cache in caches if cache is not None]
    batch = KVCache(given[0].config, len(caches), given[0].max_draft_tokens)
    batch.capacity = max(cache.capacity for cache in given)
    batch.written = max(cache.written for cache in given)
    for n, layer in enumerate(batch.layers):
        rows = max(cache.layers[n].keys.shape[2] for cache in given)
        states = [_padded(cache, n, rows) if cache else _padded(given[0], n, rows, empty=True) for cache in caches]
        layer.state = [mx.concatenate(arrays) for arrays in zip(*states, strict=True)]
        mx.eval(layer.state)  # layer by layer: old and new of all together would double memory
    batch.lengths = mx.array([cache.offset if cache else 0 for cache in caches], mx.int32)
    batch.offset = max(cache.offset for cache in given)
    return batch


def put(batch: KVCache, slot: int, cache: KVCache) -> None:
    """Puts the sequence of a one-slot `cache` into a slot of `batch`, over whatever was there."""
    batch.capacity = max(batch.capacity, cache.capacity)
    batch.written = max(batch.written, cache.written)
    batch.reserve(0)  # grows what is too small
    for n, layer in enumerate(batch.layers):
        padded = _padded(cache, n, layer.keys.shape[2])
        # All of the slot: what lies beyond its length must be finite, and nobody knows what an idle slot computed.
        layer.state = [_with_slot(old, slot, new) for old, new in zip(layer.state, padded, strict=True)]
    batch.lengths = mx.where(mx.arange(batch.slots) == slot, cache.offset, batch.lengths)
    mx.eval(batch.arrays)


def _with_slot(array: mx.array, slot: int, new: mx.array) -> mx.array:
    array[slot : slot + 1] = new
    return array


def _padded(cache: KVCache, n: int, rows: int, *, empty: bool = False) -> list[mx.array]:
    """The buffers of layer `n` with `rows` rows, zeros behind what they hold; only zeros where it shall be empty."""
    padded = []
    for array in cache.layers[n].state:
        B, H, held, D = array.shape
        zeros = mx.zeros((B, H, rows - (0 if empty else held), D), array.dtype)
        padded.append(zeros if empty else mx.concatenate([array, zeros], axis=2))
    return padded
