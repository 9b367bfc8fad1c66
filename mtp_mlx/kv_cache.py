"""The key-value store: one row a slot, lengths on the device, rings for sliding layers.

Only layers that own keys and values have buffers. Row b of every buffer belongs to slot b; its valid keys are the
absolute positions 0 … lengths[b]-1 (full attention) or the newest of them (sliding). Position p lies at index
p % capacity. Whatever lies beyond `lengths` is garbage that the next write covers: rejecting drafts costs nothing.

Invariant, however a generation ends: the cache holds the prompt and every emitted token except the last one.

The model never touches buffers itself; `steps.py` stands between them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import mlx.core as mx

from mtp_mlx.models.config import SLIDING, DecoderConfig, LayerConfig

MAX_DRAFT_TOKENS = 16  # llama.cpp's default --draft-max; the rings leave room for two rounds of it
CAPACITY_STEP = 256
CHECKPOINT_BYTES = 64 << 20  # kept rings: 9 checkpoints of an E2B in bfloat16; of a 31B, one is already larger

KeysValues = tuple[mx.array, mx.array]


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
            if old is not None:
                mx.eval(self.__dict__[name])  # one at a time: old and new of all together would double memory

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

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for ring in self.rings for array in ring)


class KVCache:
    """The keys and values of all slots, one `LayerCache` per owner of keys and values.

    Args:
        config: the target's configuration.
        slots: number of sequences B.
        max_draft_tokens: most drafts a round verifies; sets how much longer than the window the rings are.
    """

    def __init__(self, config: DecoderConfig, slots: int = 1, max_draft_tokens: int = MAX_DRAFT_TOKENS):
        self.config = config
        self.slots = slots
        self.layers = [LayerCache(config.layers[i]) for i in config.kv_owners]
        self.set_length(0)
        self.written = 0  # one past the newest position that may have been written, garbage included
        self.capacity = 0
        # Verification writes k+1 rows, and when a stream is closed early one more round may already be in flight:
        # two rounds of rows may be garbage while the drafter's window of window + 1 keys has to stay whole.
        self.max_draft_tokens = max_draft_tokens
        self.max_rows = max_draft_tokens + 1
        self.has_rings = SLIDING in config.kv_types
        self.ring = _round_up(config.sliding_window + 1 + 2 * self.max_rows, 8) if self.has_rings else 0
        self._entry = {owner: n for n, owner in enumerate(config.kv_owners)}
        self.checkpoints: list[Checkpoint] = []  # from the oldest place to the newest
        self.beside: KVCache | None = None  # a stand-alone drafter's, which has the lengths of this one

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[LayerCache]:
        return iter(self.layers)

    def __getitem__(self, index: int) -> LayerCache:
        return self.layers[index]

    @classmethod
    def over(cls, config: DecoderConfig, arrays: list[mx.array]) -> "KVCache":
        """A cache over existing `arrays`, for use inside a compiled function."""
        cache = cls(config, slots=arrays[0].shape[0])
        cache.arrays = arrays
        return cache

    @property
    def nbytes(self) -> int:
        beside = 0 if self.beside is None else self.beside.nbytes
        return beside + sum(layer.nbytes for layer in self.layers)

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
        if tokens > self.capacity:
            # Steps grow with the length, so that a long generation grows (and retraces) a logarithmic number of times.
            step = CAPACITY_STEP
            while step * 8 <= tokens:
                step *= 2
            self.capacity = _round_up(tokens, step)
        for layer in self.layers:  # each by its own size: where growing was interrupted, it goes on now
            if layer.values is not None and not layer.layer.is_sliding and layer.values.shape[2] < self.capacity:
                layer.grow(self.capacity, like=(layer.keys, layer.values))
        if self.beside is not None:
            self.beside.offset = self.offset
            self.beside.reserve(rows + self.max_rows)  # drafting goes on from the last row that is accepted

    def require(self, tokens: int) -> None:
        """Plans for `tokens` from the first write on, so that buffers do not grow, and kernels change, on the way."""
        self.capacity = max(self.capacity, _round_up(tokens, CAPACITY_STEP))

    def allocate(self, layer: LayerCache, like: KeysValues) -> None:
        """First write: the buffers take the dtype of what is written."""
        if layer.values is None:  # they come after the keys, also where an interrupt falls between the two
            layer.grow(self.ring if layer.layer.is_sliding else self.capacity, like)

    def set_length(self, offset: int) -> None:
        """Says that every slot holds exactly `offset` tokens. What lies beyond becomes garbage."""
        self.offset = offset  # the same on the host as `lengths` on the device; exact between rounds
        # From data, not from an operation: that would be bound to this thread's stream, and the next turn can come in
        # another thread.
        self.lengths = mx.array([offset] * self.slots, mx.int32)

    def checkpoint(self) -> None:
        """Remembers the rings as they are now, so that `rewind` can come back here exactly.

        Older checkpoints are kept too, as far as `CHECKPOINT_BYTES` allow.
        """
        if not self.has_rings:  # linear buffers can go back anywhere
            return
        rings = [layer.state for layer in self.layers if layer.layer.is_sliding]
        self.checkpoints = [saved for saved in self.checkpoints if saved.offset < self.offset]
        self.checkpoints.append(Checkpoint(self.offset, self.written, rings))
        while len(self.checkpoints) > 1 and sum(saved.nbytes for saved in self.checkpoints) > CHECKPOINT_BYTES:
            del self.checkpoints[0]

    def rewind(self, offset: int) -> int:
        """Goes back so that the cache holds at most the first `offset` tokens.

        Returns:
            How many tokens it now holds: `offset` where the rings still reach back that far, otherwise that of the
            last checkpoint before it, or 0. The caller prefills the rest again.
        """
        offset = min(offset, self.offset)
        if not self._rings_reach(offset):
            offset = self._restore(offset)
        self.checkpoints = [saved for saved in self.checkpoints if saved.offset <= offset]
        self.set_length(offset)
        return offset

    def _rings_reach(self, offset: int) -> bool:
        if not self.has_rings:
            return True
        oldest_intact = self.written - self.ring
        return oldest_intact <= max(0, offset - self.config.sliding_window - 1)

    def _restore(self, offset: int) -> int:
        saved = next((saved for saved in reversed(self.checkpoints) if saved.offset <= offset), None)
        if saved is None:
            self.written = 0
            return 0
        self.written = saved.written
        for layer, ring in zip((la for la in self.layers if la.layer.is_sliding), saved.rings, strict=True):
            layer.state = ring
        return saved.offset


def _round_up(n: int, step: int) -> int:
    return -(-n // step) * step
