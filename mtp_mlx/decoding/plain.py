"""Plain greedy decoding, one token a forward pass: the slow reference that every fast path is compared with."""

from collections.abc import Iterator

import mlx.core as mx

from mtp_mlx.decoding.prefill import PREFILL_STEP_SIZE, prefill
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.target import Target


def plain_tokens(
    model: Target, prompt: list[int], cache: KVCache | None = None, step_size: int = PREFILL_STEP_SIZE
) -> Iterator[tuple[int, mx.array]]:
    """Yields (token id, logits [V] it was chosen from) for as long as it is asked.

    Between two tokens the cache holds the prompt and every yielded token except the last.
    """
    cache = model.make_cache() if cache is None else cache
    logits = model.logits(prefill(model, mx.array([prompt]), cache, step_size))[0, -1]
    while True:
        token = mx.argmax(logits).item()
        yield token, logits
        logits = model(mx.array([[token]]), cache)[0, -1]
