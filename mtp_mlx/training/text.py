"""Text of the target's own: what a drafter will have to predict is best learned from what the target writes."""

import mlx.core as mx

from mtp_mlx.models.target import Target


def continue_prompts(target: Target, prompts: mx.array, temperatures: mx.array) -> mx.array:
    """Continues B prompts of equal length side by side.

    Args:
        prompts: ids [B, P].
        temperatures: of each sampled token [B, G]; 0 takes the most likely one.

    Returns:
        Prompts and continuations [B, P + G].
    """
    cache = target.make_cache(slots=prompts.shape[0])
    cache.reserve(prompts.shape[1] + temperatures.shape[1])
    tokens = [prompts]
    logits = target.logits(target.model.prefill(prompts, cache))
    for i in range(temperatures.shape[1]):
        token = _sample(logits[:, -1], temperatures[:, i])
        mx.eval(token, cache.arrays)
        tokens.append(token[:, None])
        if i + 1 < temperatures.shape[1]:
            logits = target(token[:, None], cache)
    return mx.concatenate(tokens, axis=1)


def _sample(logits: mx.array, temperature: mx.array) -> mx.array:
    """Logits [B, V], temperatures [B] -> ids [B]."""
    greedy = temperature == 0
    sampled = mx.random.categorical(logits / mx.where(greedy, 1.0, temperature)[:, None])
    return mx.where(greedy, mx.argmax(logits, axis=-1), sampled)
