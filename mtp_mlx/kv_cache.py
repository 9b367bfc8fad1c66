"""The key-value store: one row a slot, lengths on the device, rings for sliding layers.

Only layers that own keys and values have buffers. Row b of every buffer belongs to slot b; its valid keys are the
absolute positions 0 … lengths[b]-1 (full attention) or the newest of them (sliding). Position p lies at index
p % capacity. Whatever lies beyond `lengths` is garbage that the next write covers: rejecting drafts costs nothing.

Invariant, however a generation ends: the cache holds the prompt and every emitted token except the last one.

The model never touches buffers itself. It gets a *step*, which knows where new rows go, which keys they may see and
which position they rotate by: `Uncached`, `ChunkStep` (prefill: lengths known on the host), `RowsStep` (decoding and
verification: lengths on the device) or `DraftStep` (reads only).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx

from mtp_mlx.models.config import FULL, SLIDING, LayerConfig, TextConfig

MAX_DRAFT_TOKENS = 16  # llama.cpp's default --draft-max; the rings leave room for two rounds of it
CAPACITY_STEP = 256

KeysValues = tuple[mx.array, mx.array]
Mask = mx.array | str | None


class LayerCache:
    """Keys and values [B, kv_heads, capacity, head_dim] of one layer."""

    def __init__(self, layer: LayerConfig):
        self.layer = layer
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def state(self) -> list[mx.array]:
        return [] if self.keys is None else [self.keys, self.values]

    @state.setter
    def state(self, arrays: list[mx.array]) -> None:
        self.keys, self.values = arrays

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.state)

    def grow(self, capacity: int, like: KeysValues) -> None:
        """Gives the buffers `capacity` rows, keeping what they hold; zeros, because 0·NaN would poison a row."""
        for name, new in zip(("keys", "values"), like, strict=True):
            old = self.__dict__[name]
            B, H, _, D = new.shape
            rows = capacity if old is None else capacity - old.shape[2]
            zeros = mx.zeros((B, H, rows, D), new.dtype)
            self.__dict__[name] = zeros if old is None else mx.concatenate([old, zeros], axis=2)

    def write(self, positions: mx.array, keys: mx.array, values: mx.array) -> None:
        """Writes rows [B, H, L, D] at absolute `positions` [B, L]; in place when nothing else holds the buffer."""
        index = (positions % self.keys.shape[2])[:, None, :, None]
        self.keys = mx.put_along_axis(self.keys, index, keys, axis=2)
        self.values = mx.put_along_axis(self.values, index, values, axis=2)

    def write_slice(self, offset: int, keys: mx.array, values: mx.array) -> None:
        """Writes rows at `offset` … of a linear buffer, with the offset known on the host."""
        end = offset + keys.shape[2]
        self.keys[:, :, offset:end] = keys
        self.values[:, :, offset:end] = values

    def read(self, start: int, end: int) -> KeysValues:
        """Rows of the absolute positions start … end-1, in that order."""
        index = mx.arange(start, end) % self.keys.shape[2]
        return mx.take(self.keys, index, axis=2), mx.take(self.values, index, axis=2)


@dataclass
class Checkpoint:
    """What a rewind past the rings needs: their contents when the cache held `offset` tokens.

    Arrays are values: keeping them costs no copy now, but one when the ring is next written.
    """

    offset: int
    written: int
    rings: list[list[mx.array]]


class KVCache:
    """The keys and values of all slots, one `LayerCache` per owner of keys and values.

    Args:
        config: the target's configuration.
        slots: number of sequences B.
        max_draft_tokens: most drafts a round verifies; sets how much longer than the window the rings are.
    """

    def __init__(self, config: TextConfig, slots: int = 1, max_draft_tokens: int = MAX_DRAFT_TOKENS):
        self.config = config
        self.slots = slots
        self.layers = [LayerCache(config.layers[i]) for i in config.kv_owners]
        self.lengths = mx.zeros((slots,), mx.int32)
        self.offset = 0  # the same on the host; exact between rounds
        self.written = 0  # one past the newest position that may have been written, garbage included
        self.capacity = 0
        # Verification writes k+1 rows, and when a stream is closed early one more round may already be in flight:
        # two rounds of rows may be garbage while the drafter's window of window + 1 keys has to stay whole.
        self.max_rows = max_draft_tokens + 1
        self.ring = _round_up(config.sliding_window + 1 + 2 * self.max_rows, 8)
        self._entry = {owner: n for n, owner in enumerate(config.kv_owners)}
        self._checkpoint: Checkpoint | None = None

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[LayerCache]:
        return iter(self.layers)

    def __getitem__(self, index: int) -> LayerCache:
        return self.layers[index]

    @classmethod
    def over(cls, config: TextConfig, arrays: list[mx.array]) -> "KVCache":
        """A cache over existing `arrays`, for use inside a compiled function."""
        cache = cls(config, slots=arrays[0].shape[0])
        cache.arrays = arrays
        return cache

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    @property
    def arrays(self) -> list[mx.array]:
        """Every device array of the cache; assigning binds new ones, so that a compiled function can carry them."""
        return [self.lengths, *(array for layer in self.layers for array in layer.state)]

    @arrays.setter
    def arrays(self, arrays: list[mx.array]) -> None:
        self.lengths, *buffers = arrays
        for n, layer in enumerate(self.layers):
            layer.state = buffers[2 * n : 2 * n + 2]

    def owner(self, index: int) -> LayerCache:
        """The cache of target layer `index`, which must own its keys and values."""
        return self.layers[self._entry[index]]

    def shared(self, layer_type: str) -> LayerCache:
        """The cache that KV-shared layers and the drafter read: the last owner's of that type."""
        return self.owner(self.config.last_owner(layer_type))

    def reserve(self, rows: int) -> None:
        """Makes room to append `rows` tokens. Call before dispatching: device writes are not bounds-checked."""
        tokens = self.offset + rows
        self.written = max(self.written, tokens)
        if tokens <= self.capacity:
            return
        # Steps grow with the length, so that a long generation grows (and retraces) a logarithmic number of times.
        step = CAPACITY_STEP
        while step * 8 <= tokens:
            step *= 2
        self.capacity = _round_up(tokens, step)
        for layer in self.layers:
            if layer.keys is not None and not layer.layer.is_sliding:
                layer.grow(self.capacity, like=(layer.keys, layer.values))
                mx.eval(layer.state)  # one layer at a time: old and new of all layers together would double memory

    def allocate(self, layer: LayerCache, like: KeysValues) -> None:
        """First write: the buffers take the dtype of what is written."""
        if layer.keys is None:
            layer.grow(self.ring if layer.layer.is_sliding else self.capacity, like)

    def step(self, rows: int) -> "ChunkStep | RowsStep":
        """The step that appends `rows` tokens: in the rings where they fit, as a prefill chunk otherwise."""
        self.reserve(rows)
        if self.offset and rows <= self.max_rows:
            return RowsStep(self, rows)
        return ChunkStep(self, rows)

    def set_length(self, offset: int) -> None:
        """Says that every slot holds exactly `offset` tokens. What lies beyond becomes garbage."""
        self.offset = offset
        self.lengths = mx.full((self.slots,), offset, mx.int32)

    def checkpoint(self) -> None:
        """Remembers the rings as they are now (and no older ones), so that `rewind` can come back here exactly."""
        rings = [layer.state for layer in self.layers if layer.layer.is_sliding]
        self._checkpoint = Checkpoint(self.offset, self.written, rings)

    def rewind(self, offset: int) -> int:
        """Goes back so that the cache holds at most the first `offset` tokens.

        Returns:
            How many tokens it now holds: `offset` where the rings still reach back that far, otherwise that of the
            checkpoint if it lies before, or 0. The caller prefills the rest again.
        """
        offset = min(offset, self.offset)
        if not self._rings_reach(offset):
            offset = self._restore(offset)
        if self._checkpoint is not None and self._checkpoint.offset > offset:
            self._checkpoint = None
        self.set_length(offset)
        return offset

    def _rings_reach(self, offset: int) -> bool:
        oldest_intact = self.written - self.ring
        return oldest_intact <= max(0, offset - self.config.sliding_window - 1)

    def _restore(self, offset: int) -> int:
        saved = self._checkpoint
        if saved is None or saved.offset > offset:
            self.written = 0
            return 0
        self.written = saved.written
        for layer, ring in zip((la for la in self.layers if la.layer.is_sliding), saved.rings, strict=True):
            layer.state = ring
        return saved.offset


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


def _round_up(n: int, step: int) -> int:
    return -(-n // step) * step
