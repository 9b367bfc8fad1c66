"""Moving sequences between key-value stores: into the slots of a batch, and out of them again.

Everything is evaluated before it is handed out: an unevaluated copy would hold the buffers it reads, and the next round
could not update them in place.
"""

from collections.abc import Sequence

import mlx.core as mx

from mtp_mlx.kv_cache import KVCache


def take(cache: KVCache, slot: int, offset: int | None = None, max_draft_tokens: int | None = None) -> KVCache:
    """A store of its own with one slot of `cache`, which it leaves as it is.

    Args:
        offset: how many tokens of the slot to keep; all of them by default. At most a round's rows may be given up.
        max_draft_tokens: of the new store; the same by default. Its rings are as long as that asks for.
    """
    taken = KVCache(cache.config, 1, cache.max_draft_tokens if max_draft_tokens is None else max_draft_tokens)
    length = cache.lengths[slot].item()
    taken.set_length(length if offset is None else offset)
    # The store's own mark is the longest slot's; this one has verified no further than a round past its length.
    taken.written, taken.capacity = min(cache.written, length + cache.max_rows), cache.capacity
    same_rings = taken.ring == cache.ring
    if not same_rings:
        taken.written = taken.offset
    for mine, theirs in zip(taken.layers, cache.layers, strict=True):
        if theirs.state:
            own = [mx.contiguous(array[slot : slot + 1]) for array in theirs.state]
            moved = theirs.layer.is_sliding and not same_rings
            mine.state = [_in_ring(array, taken) for array in own] if moved else own
    mx.eval(taken.arrays)
    return taken


def _in_ring(array: mx.array, cache: KVCache) -> mx.array:
    """The newest rows of a ring [1, H, ring, D] of another length, where they belong in the rings of `cache`."""
    B, H, ring, D = array.shape
    positions = mx.arange(max(0, cache.offset - cache.config.sliding_window - 1), cache.offset)
    newest = mx.take(array, positions % ring, axis=2)
    empty = mx.zeros((B, H, cache.ring, D), array.dtype)
    return mx.put_along_axis(empty, (positions % cache.ring)[None, None, :, None], newest, axis=2)


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
