"""Prompt processing in chunks."""

from collections.abc import Callable

import mlx.core as mx

from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.drafter import Drafter
from mtp_mlx.models.target import Target

PREFILL_STEP_SIZE = 512  # mlx-lm's for speculative decoding

Progress = Callable[[int, int], None]


def prefill(
    model: Target,
    prompt: mx.array,
    cache: KVCache,
    step_size: int = PREFILL_STEP_SIZE,
    progress: Progress | None = None,
    drafter: Drafter | None = None,
) -> mx.array:
    """Appends `prompt` [B, L] to the cache.

    Args:
        progress: called with (tokens processed, tokens in all), before the first chunk and after each but the last.
        drafter: reads the prompt too, where it is one that does.

    Returns:
        The hidden state of the last token [B, 1, D], not yet evaluated.
    """
    total = prompt.shape[1]
    for start in range(0, total, step_size):
        if start:
            mx.eval(cache.arrays)
            mx.clear_cache()  # the next chunk's arrays have other sizes
        if progress is not None:
            progress(start, total)
        chunk = prompt[:, start : start + step_size]
        hidden = model.model.prefill(chunk, cache)
        if drafter is not None:
            drafter.read(chunk, cache)
    return hidden
