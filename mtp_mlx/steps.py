"""What one forward pass may see of the key-value store, and where its own keys and values go.

A step tells the layers which position queries and keys rotate by (`offset`), takes new keys and values (`write`), and
has for each layer type the keys and values to attend to (`kv`) and which of them are visible (`masks`).
"""

import mlx.core as mx

from mtp_mlx.kv_cache import KeysValues, KVCache, LayerCache
from mtp_mlx.models.config import FULL, SLIDING, TextConfig

Mask = mx.array | str | None


def step_for(cache: KVCache, rows: int) -> "ChunkStep | RowsStep":
    """The step that appends `rows` tokens: in the rings where they fit, as a prefill chunk otherwise."""
    cache.reserve(rows)
    if cache.offset and rows <= cache.max_rows:
        return RowsStep(cache, rows)
    return ChunkStep(cache, rows)


class Uncached:
    """A whole sequence at once, keys and values thrown away afterwards."""

    def __init__(self, config: TextConfig, rows: int):
        self.offset = 0
        self.kv: dict[str, KeysValues] = {}
        self.masks = {FULL: "causal", SLIDING: band_mask(rows, rows, config.sliding_window)}
        self._config = config

    def write(self, index: int, keys: mx.array, values: mx.array) -> None:
        self.kv[self._config.layers[index].layer_type] = (keys, values)


class ChunkStep:
    """A prefill chunk: appends `rows` tokens at an offset that the host knows, with causal masks and plain slices."""

    def __init__(self, cache: KVCache, rows: int):
        self._cache, self._rows = cache, rows
        self.offset = cache.offset
        self.kv: dict[str, KeysValues] = {}
        self.window = cache.config.sliding_window
        self._kept = min(self.offset, self.window - 1)  # older keys that the first new row can still see
        self.masks = {FULL: "causal", SLIDING: band_mask(rows, self._kept + rows, self.window)}

    def write(self, index: int, keys: mx.array, values: mx.array) -> None:
        layer = self._cache.owner(index)
        self._cache.allocate(layer, (keys, values))
        write = self._write_ring if layer.layer.is_sliding else self._write_linear
        self.kv[layer.layer.layer_type] = write(layer, keys, values)

    def commit(self) -> None:
        self._cache.set_length(self.offset + self._rows)

    def last_row(self) -> "LastRow":
        """The same step, for the layers that share keys and values, when only the last row is of interest."""
        return LastRow(self, self._rows)

    def _write_linear(self, layer: LayerCache, keys: mx.array, values: mx.array) -> KeysValues:
        layer.write_slice(self.offset, keys, values)
        end = self.offset + self._rows
        return layer.keys[:, :, :end], layer.values[:, :, :end]

    def _write_ring(self, layer: LayerCache, keys: mx.array, values: mx.array) -> KeysValues:
        seen = keys, values
        if self._kept:
            old = layer.read(self.offset - self._kept, self.offset)
            seen = tuple(mx.concatenate(pair, axis=2) for pair in zip(old, seen, strict=True))
        rows = min(self._rows, self._cache.ring)
        end = self.offset + self._rows
        positions = mx.broadcast_to(mx.arange(end - rows, end), (keys.shape[0], rows))
        layer.write(positions, keys[:, :, -rows:], values[:, :, -rows:])
        return seen


class LastRow:
    """The last row of a chunk: sees every key of the chunk's window, writes nothing."""

    def __init__(self, chunk: ChunkStep, rows: int):
        self.offset = chunk.offset + rows - 1
        self.masks: dict[str, Mask] = {FULL: None, SLIDING: None}
        keys, values = chunk.kv[SLIDING]
        self.kv = {**chunk.kv, SLIDING: (keys[:, :, -chunk.window :], values[:, :, -chunk.window :])}


class RowsStep:
    """Appends `rows` tokens to every slot at its own length, which only the device knows."""

    def __init__(self, cache: KVCache, rows: int):
        self._cache, self._rows = cache, rows
        self.offset = cache.lengths
        self.kv: dict[str, KeysValues] = {}
        self._positions = cache.lengths[:, None] + mx.arange(rows)
        self.masks = _visible_by_type(cache, self._positions, cache.config.sliding_window)

    def write(self, index: int, keys: mx.array, values: mx.array) -> None:
        layer = self._cache.owner(index)
        layer.write(self._positions, keys, values)
        self.kv[layer.layer.layer_type] = (layer.keys, layer.values)

    def commit(self) -> None:
        self._cache.set_length(self._cache.offset + self._rows)


class DraftStep:
    """What the drafter sees: every committed key, at one constant position, writing nothing.

    Sliding layers see the newest `window + 1` committed keys, as transformers' drafter does (its window is inclusive).

    Args:
        cache: the target's store.
        position: "next", the index of the token that is drafted from (transformers, llama.cpp), or "last_cached",
            one less (mlx-vlm, vLLM).
    """

    def __init__(self, cache: KVCache, position: str = "next"):
        newest = cache.lengths - 1
        self.offset = cache.lengths if position == "next" else newest
        self.kv = {kind: tuple(cache.shared(kind).state) for kind in (FULL, SLIDING)}
        self.masks = _visible_by_type(cache, newest[:, None], cache.config.sliding_window + 1)


Step = Uncached | ChunkStep | LastRow | RowsStep | DraftStep


def band_mask(rows: int, keys: int, window: int) -> Mask:
    """Causal mask within a sliding window: [rows, keys], the last row seeing up to the last key."""
    if keys <= window:
        return "causal"
    q = mx.arange(keys - rows, keys)[:, None]
    k = mx.arange(keys)[None]
    return (k <= q) & (k > q - window)


def _visible_by_type(cache: KVCache, queries: mx.array, window: int) -> dict[str, Mask]:
    return {
        kind: _visible(queries, cache.shared(kind).keys.shape[2], limit)
        for kind, limit in ((FULL, None), (SLIDING, window))
    }


def _visible(queries: mx.array, capacity: int, window: int | None) -> mx.array:
    """Which buffer rows the queries at absolute positions [B, L] may see: bool [B, 1, L, capacity].

    Row r holds the newest position p ≤ the last query with p % capacity == r. A linear buffer is the case where that
    is r itself or nothing.
    """
    last = queries[:, -1:]
    held = last - (last - mx.arange(capacity)) % capacity
    held, q = held[:, None, None, :], queries[:, None, :, None]
    seen = (held >= 0) & (held <= q)
    return seen if window is None else seen & (held > q - window)
