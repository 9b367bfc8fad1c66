"""How tokens are drawn at a temperature."""

import math

import mlx.core as mx
from mlx_lm.sample_utils import make_sampler as mlx_lm_sampler

from mtp_mlx.decoding.sampling import Sampler
from mtp_mlx.errors import MisuseError

COLDEST = 1e-6  # below, log-probabilities ÷ temperature leave float32's range; at this one they are as good as greedy
_MOST_SEED = 2**64 - 1


def make_sampler(
    temp: float = 0.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0, seed: int | None = None
) -> Sampler | None:
    """mlx-lm's sampler, or None for greedy decoding.

    Args:
        temp: temperature; 0 is greedy, and so is everything below `COLDEST`.
        top_p: keep the most likely tokens up to this share of the probability; 1 keeps all.
        top_k: keep so many of the most likely tokens; 0 keeps all.
        min_p: keep tokens at least so likely, as a share of the most likely one's probability; 0 keeps all.
        seed: seeds MLX's random generator; None leaves it as it is. Each row of a round draws from it, so the same
            seed gives the same tokens as long as rounds draft alike: with a fixed number of draft tokens.

    Raises:
        MisuseError: a value out of its range.
    """
    checks = [
        ("the temperature must not be negative", temp, temp >= 0),
        ("the temperature must be finite", temp, temp < math.inf),
        ("top_p must be above 0 and at most 1", top_p, 0 < top_p <= 1),
        ("top_k must not be negative", top_k, top_k >= 0),
        ("min_p must be between 0 and 1", min_p, 0 <= min_p <= 1),
        ("the seed must not be negative", seed, seed is None or seed >= 0),
        (f"the seed must be at most {_MOST_SEED}", seed, seed is None or seed <= _MOST_SEED),
    ]
    for rule, given, holds in checks:
        if not holds:
            raise MisuseError(rule, given=given)
    if seed is not None:
        mx.random.seed(seed)
    if temp < COLDEST:
        return None
    some, all_ = mlx_lm_sampler(temp, top_p, min_p, top_k=top_k), mlx_lm_sampler(temp, top_p, min_p)
    return lambda logprobs: (some if top_k < logprobs.shape[-1] else all_)(logprobs)  # mlx-lm's refuses to keep all
