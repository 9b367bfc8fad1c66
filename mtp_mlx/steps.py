"""What one forward pass may see of the key-value store, and where its own keys and values go.

A step tells the layers which position queries and keys rotate by (`offset`), takes new keys and values (`write`), and
has for each layer type the keys and values to attend to (`kv`) and which of them are visible (`masks`).

A key stands at the same place among the keys of a sliding layer, however its token and the query's came in: at its
position modulo the length of the ring. So sums over keys always add up in the same order, and a row's result does not
depend on how prompts were cut into chunks and tokens into rounds.
"""

import mlx.core as mx

from mtp_mlx.kv_cache import KeysValues, KVCache, LayerCache
from mtp_mlx.models.config import FULL, SLIDING, DecoderConfig

Mask = mx.array | str | None


def step_for(cache: KVCache, rows: int) -> "ChunkStep | RowsStep":
    """The step that appends `rows` tokens: in the rings where they fit, as a prefill chunk otherwise."""
    cache.reserve(rows)
    if cache.offset and rows <= cache.max_rows:
        return RowsStep(cache, rows)
    return ChunkStep(cache, rows)


class Attending:
    """Attention to a step's keys and values."""

    kv: dict[str, KeysValues]
    masks: dict[str, Mask]

    def attend(self, queries: mx.array, layer_type: str, scale: float) -> mx.array:
        """Queries [B, heads, L, head_dim] -> outputs of the same shape; `scale` is of the products with keys."""
        return _attention(queries, *self.kv[layer_type], scale, self.masks[layer_type])


class Uncached(Attending):
    """A whole sequence at once, keys and values thrown away afterwards."""

    def __init__(self, config: DecoderConfig, rows: int):
        self.offset = 0
        self.kv = {}
        self.masks = dict.fromkeys(config.kv_types, "causal")
        if SLIDING in self.masks:
            self.masks[SLIDING] = band_mask(rows, rows, config.sliding_window)
        self._config = config

    def write(self, index: int, keys: mx.array, values: mx.array) -> None:
        self.kv[self._config.layers[index].layer_type] = (keys, values)


class ChunkStep(Attending):
    """A prefill chunk: appends `rows` tokens at an offset that the host knows, with causal masks and plain slices."""

    def __init__(self, cache: KVCache, rows: int):
        self._cache, self._rows = cache, rows
        self.offset = cache.offset
        self.kv = {}
        self.masks: dict[str, Mask] = {FULL: "causal"}
        self._ring = _RingChunk(cache, rows) if cache.has_rings else None
        if self._ring is not None:
            self.masks[SLIDING] = self._ring.mask

    def attend(self, queries: mx.array, layer_type: str, scale: float) -> mx.array:
        if layer_type == FULL or self._ring.blocks is None:
            return super().attend(queries, layer_type, scale)
        return self._ring.blocks.attend(queries, *self.kv[layer_type], scale)

    def write(self, index: int, keys: mx.array, values: mx.array) -> None:
        layer = self._cache.owner(index)
        self._cache.allocate(layer, (keys, values))
        write = self._ring.write if layer.layer.is_sliding else self._write_linear
        self.kv[layer.layer.layer_type] = write(layer, keys, values)

    def commit(self) -> None:
        self._cache.set_length(self.offset + self._rows)

    def last_row(self) -> "LastRow":
        """The same step, for the layers that share keys and values, when only the last row is of interest."""
        return LastRow(self._cache, self.offset + self._rows - 1, self.kv)

    def _write_linear(self, layer: LayerCache, keys: mx.array, values: mx.array) -> KeysValues:
        layer.write_slice(self.offset, keys, values)
        end = self.offset + self._rows
        return layer.keys[:, :, :end], layer.values[:, :, :end]


class _RingChunk:
    """A prefill chunk in sliding layers.

    Attributes:
        mask: of the chunk's rows, over the keys that `write` gives.
        blocks: how the rows attend where the chunk wraps around the ring, else None.
    """

    def __init__(self, cache: KVCache, rows: int):
        window, self._ring, self._rows = cache.config.sliding_window, cache.ring, rows
        self._offset, self._end = cache.offset, cache.offset + rows
        self._kept = min(self._offset, window - 1)  # older keys that the first new row can still see
        self.mask = band_mask(rows, self._kept + rows, window)
        wraps = self._end > cache.ring
        self.blocks = _Blocks(self._offset, self._end, self._offset - self._kept, cache) if wraps else None

    def write(self, layer: LayerCache, keys: mx.array, values: mx.array) -> KeysValues:
        seen = keys, values
        if self._kept:
            old = layer.read(self._offset - self._kept, self._offset)
            seen = tuple(mx.concatenate(pair, axis=2) for pair in zip(old, seen, strict=True))
        rows = min(self._rows, self._ring)
        positions = mx.broadcast_to(mx.arange(self._end - rows, self._end), (keys.shape[0], rows))
        layer.write(positions, keys[:, :, -rows:], values[:, :, -rows:])
        return seen


class _Blocks:
    """Attention of a chunk's rows to a ring that the chunk wraps around, as if the rows had come a few at a time.

    Each block of rows sees the ring as it is once the block is written: its keys and values are gathered in that order.

    Args:
        start, end: positions of the chunk.
        oldest: position of the first key that is given.
        cache: whose ring it is.
    """

    def __init__(self, start: int, end: int, oldest: int, cache: KVCache):
        window, self.ring = cache.config.sliding_window, cache.ring
        self.rows = self.ring - window  # at most: the first row's window must not be overwritten by the last row
        self.count = -(-(end - start) // self.rows)
        queries = mx.minimum(start + mx.arange(self.count * self.rows), end - 1).reshape(self.count, self.rows)
        held = _held(queries[:, -1:], self.ring)
        self.index = mx.maximum(held - oldest, 0).reshape(-1)
        self.mask = _visible(queries, self.ring, window)

    def attend(self, queries: mx.array, keys: mx.array, values: mx.array, scale: float) -> mx.array:
        """Queries of the chunk's rows and the keys and values from `oldest` on -> outputs, all [B, heads, …, D]."""
        B, H, L, D = queries.shape
        padded = mx.pad(queries, [(0, 0), (0, 0), (0, self.count * self.rows - L), (0, 0)])
        mask = mx.broadcast_to(self.mask[None], (B, *self.mask.shape)).reshape(-1, *self.mask.shape[1:])
        gathered = [self._side_by_side(mx.take(x, self.index, axis=2), self.ring) for x in (keys, values)]
        out = _attention(self._side_by_side(padded, self.rows), *gathered, scale, mask)
        return out.reshape(B, self.count, H, self.rows, D).swapaxes(1, 2).reshape(B, H, -1, D)[:, :, :L]

    def _side_by_side(self, x: mx.array, rows: int) -> mx.array:
        """[B, H, blocks · rows, D] -> [B · blocks, H, rows, D]"""
        B, H, _, D = x.shape
        return x.reshape(B, H, self.count, rows, D).swapaxes(1, 2).reshape(-1, H, rows, D)


class LastRow(Attending):
    """The last row of a chunk that has been written, for layers that share keys and values; writes nothing."""

    def __init__(self, cache: KVCache, position: int, written: dict[str, KeysValues]):
        self.offset = position
        self.kv, self.masks = dict(written), dict.fromkeys(written)
        if cache.has_rings:
            self.kv[SLIDING] = tuple(cache.shared(SLIDING).state)
            self.masks[SLIDING] = _visible(mx.array([[position]]), cache.ring, cache.config.sliding_window)


class RowsStep(Attending):
    """Appends `rows` tokens to every slot at its own length, which only the device knows."""

    def __init__(self, cache: KVCache, rows: int):
        self._cache, self._rows = cache, rows
        self.offset = cache.lengths
        self.kv = {}
        self._positions = cache.lengths[:, None] + mx.arange(rows)
        self.masks = _visible_by_type(cache, self._positions)

    def write(self, index: int, keys: mx.array, values: mx.array) -> None:
        layer = self._cache.owner(index)
        layer.write(self._positions, keys, values)
        self.kv[layer.layer.layer_type] = (layer.keys, layer.values)

    def commit(self) -> None:
        self._cache.set_length(self._cache.offset + self._rows)


class DraftStep(Attending):
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
        self.kv = {kind: tuple(cache.shared(kind).state) for kind in cache.config.kv_types}
        self.masks = _visible_by_type(cache, newest[:, None], more=1)


Step = Uncached | ChunkStep | LastRow | RowsStep | DraftStep


def band_mask(rows: int, keys: int, window: int) -> Mask:
    """Causal mask within a sliding window: [rows, keys], the last row seeing up to the last key."""
    if keys <= window:
        return "causal"
    q = mx.arange(keys - rows, keys)[:, None]
    k = mx.arange(keys)[None]
    return (k <= q) & (k > q - window)


def _visible_by_type(cache: KVCache, queries: mx.array, more: int = 0) -> dict[str, Mask]:
    """What queries at positions [B, L] may see, in sliding layers `more` keys than the window."""
    windows = {FULL: None}
    if cache.has_rings:
        windows[SLIDING] = cache.config.sliding_window + more
    return {kind: _visible(queries, cache.shared(kind).keys.shape[2], windows[kind]) for kind in cache.config.kv_types}


def _visible(queries: mx.array, capacity: int, window: int | None) -> mx.array:
    """Which buffer rows the queries at absolute positions [B, L] may see: bool [B, 1, L, capacity].

    A linear buffer is the case where row r holds position r or nothing.
    """
    held, q = _held(queries[:, -1:], capacity)[:, None, None, :], queries[:, None, :, None]
    seen = (held >= 0) & (held <= q)
    return seen if window is None else seen & (held > q - window)


def _held(last: mx.array, capacity: int) -> mx.array:
    """The positions in a buffer when `last` [B, 1] is the newest: in row r, the newest p with p % capacity == r.

    They are negative where nothing was written yet.
    """
    return last - (last - mx.arange(capacity)) % capacity


def _attention(queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: Mask) -> mx.array:
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)
