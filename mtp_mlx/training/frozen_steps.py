"""How the frozen target reads rows of text, and goes on from every place of them at once."""

import mlx.core as mx

from mtp_mlx.kv_cache import KeysValues
from mtp_mlx.models.config import FULL, SLIDING, DecoderConfig
from mtp_mlx.steps import Attending, Mask, Uncached


def visible(segments: mx.array, window: int | None) -> dict[str, Mask]:
    """Masks [B, 1, L, L] by layer type, for rows of documents that do not see each other.

    Args:
        segments: which document a token belongs to [B, L].
        window: how many keys sliding layers see; None where there are none.
    """
    query, key = mx.arange(segments.shape[1])[:, None], mx.arange(segments.shape[1])[None]
    seen = (segments[:, None, :, None] == segments[:, None, None, :]) & (key <= query)
    return {FULL: seen} if window is None else {FULL: seen, SLIDING: seen & (key > query - window)}


class PackedStep(Uncached):
    """Rows of documents [B, L], from their beginning; keeps the keys and values of every layer.

    A document need not begin at position 0: what a rotated query and key say to each other depends on their distance.

    Attributes:
        by_layer: keys and values [B, kv_heads, L, head_dim] by index of the layer that owns them.
    """

    def __init__(self, config: DecoderConfig, segments: mx.array):
        super().__init__(config, segments.shape[1])
        self.segments = segments
        self.masks = visible(segments, config.sliding_window)
        self.by_layer: dict[int, KeysValues] = {}

    def write(self, index: int, keys: mx.array, values: mx.array) -> None:
        super().write(index, keys, values)
        self.by_layer[index] = (keys, values)


class BranchStep(Attending):
    """One more token after every place of the rows: that of place i stands at position i + `depth`.

    Each place has its own continuation, a branch: it sees the row up to its place, and its own earlier tokens.

    Args:
        row: the step that read the rows.
        branches: by layer, what earlier branch steps wrote; this one adds to it.
        depth: 1 for the first token of the branches, and so on.
    """

    def __init__(self, config: DecoderConfig, row: PackedStep, branches: dict[int, list[KeysValues]], depth: int):
        self._config, self._row, self._branches = config, row, branches
        self.offset = depth
        self.kv: dict[str, KeysValues] = {}
        L, window = row.segments.shape[1], config.sliding_window
        own = mx.broadcast_to(mx.eye(L, dtype=mx.bool_), (row.segments.shape[0], 1, L, L))
        # The branch stands `depth` further on than its place.
        of_row = visible(row.segments, None if window is None else window - depth)
        self.masks: dict[str, Mask] = {FULL: mx.concatenate([of_row[FULL], *[own] * depth], axis=-1)}
        if window is not None:
            near = [own & (depth - earlier < window) for earlier in range(1, depth + 1)]
            self.masks[SLIDING] = mx.concatenate([of_row[SLIDING], *near], axis=-1)

    def write(self, index: int, keys: mx.array, values: mx.array) -> None:
        branch = self._branches.setdefault(index, [])
        branch.append((keys, values))
        everything = zip(self._row.by_layer[index], *branch, strict=True)
        self.kv[self._config.layers[index].layer_type] = tuple(mx.concatenate(parts, axis=2) for parts in everything)
