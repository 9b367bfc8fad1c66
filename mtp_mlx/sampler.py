"""How tokens are drawn: mlx-lm's sampler arguments, checked, and what speculation adds to them."""

import math
from collections.abc import Sequence

from mtp_mlx.decoding.sampling import COLDEST, Sampling
from mtp_mlx.errors import MisuseError, UserError
from mtp_mlx.models.target import Target
from mtp_weights.read import read_generation_config

_MOST_SEED = 2**64 - 1
_CONFIG_NAMES = {"temperature": "temp", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p"}


def make_sampler(
    temp: float = 0.0,
    top_p: float = 0.0,
    min_p: float = 0.0,
    min_tokens_to_keep: int = 1,
    top_k: int = 0,
    xtc_probability: float = 0.0,
    xtc_threshold: float = 0.1,
    xtc_special_tokens: Sequence[int] | None = None,
    *,
    seed: int | None = None,
    draft_temp: float | None = None,
    lenient: bool = False,
) -> Sampling:
    """mlx-lm's `make_sampler`, for lossless speculative sampling.

    All of mlx-lm's arguments describe distributions, XTC included (a mixture: with its probability without the top
    choices), so drafts are accepted by rejection sampling and the output is distributed as the target's own.
    Filters work in mlx-lm's order: top-p, min-p, XTC, top-k, then the temperature.

    Args:
        temp: temperature; 0 is greedy, and so is everything below `COLDEST`.
        top_p: keep the most likely tokens up to this share of the probability; 0 and 1 keep all.
        min_p: keep tokens at least so likely, as a share of the most likely one's probability; 0 keeps all.
        min_tokens_to_keep: which min_p keeps in any case.
        top_k: keep so many of the most likely tokens; 0 keeps all.
        xtc_probability: how often XTC leaves out all tokens above its threshold but the least likely of them.
        xtc_threshold: XTC's threshold, 0 to 0.5.
        xtc_special_tokens: ids that XTC never leaves out.
        seed: gives the same text each time, with any drafter, any number of drafts, or none (up to rounding between
            widths). None draws a fresh one from MLX's random state.
        draft_temp: the drafter's own temperature. It changes what is accepted, not how the output is distributed; None
            takes the target's, which measured best for a drafter whose probabilities are calibrated (docs/log.md).
        lenient: accept drafts that the target finds plausible, though it might have chosen otherwise. Faster, and NOT
            lossless: the output may differ from the target's.

    Raises:
        MisuseError: a value out of its range.
    """
    checks = [
        ("the temperature must not be negative", temp, temp >= 0),
        ("the temperature must be finite", temp, temp < math.inf),
        ("top_p must be between 0 and 1", top_p, 0 <= top_p <= 1),
        ("top_k must not be negative", top_k, top_k >= 0),
        ("min_p must be between 0 and 1", min_p, 0 <= min_p <= 1),
        ("min_tokens_to_keep must be positive", min_tokens_to_keep, min_tokens_to_keep >= 1),
        ("xtc_probability must be between 0 and 1", xtc_probability, 0 <= xtc_probability <= 1),
        ("xtc_threshold must be between 0 and 0.5", xtc_threshold, 0 <= xtc_threshold <= 0.5),
        ("the draft temperature must be positive", draft_temp, draft_temp is None or 0 < draft_temp < math.inf),
        ("the seed must not be negative", seed, seed is None or seed >= 0),
        (f"the seed must be at most {_MOST_SEED}", seed, seed is None or seed <= _MOST_SEED),
    ]
    for rule, given, holds in checks:
        if not holds:
            raise MisuseError(rule, given=given)
    return Sampling(
        temp=float(temp) if temp >= COLDEST else 0.0,
        top_p=float(top_p) or 1.0,
        min_p=float(min_p),
        min_tokens_to_keep=min_tokens_to_keep,
        top_k=top_k,
        xtc_probability=float(xtc_probability),
        xtc_threshold=float(xtc_threshold),
        xtc_special_tokens=tuple(xtc_special_tokens or ()),
        draft_temp=None if draft_temp is None else max(float(draft_temp), COLDEST),
        seed=seed,
        lenient=lenient,
    )


def model_defaults(model: Target) -> dict[str, float]:
    """What the checkpoint's generation_config.json says about sampling, by the names of `make_sampler`.

    Gemma 4's say temperature 1.0, top_k 64, top_p 0.95. Empty (greedy) where there is none, or it says not to sample.

    Raises:
        UserError: a value that is no number.
    """
    config = {} if model.path is None else read_generation_config(model.path)
    if not config.get("do_sample", False):
        return {}
    values = {name: config[key] for key, name in _CONFIG_NAMES.items() if config.get(key) is not None}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"generation_config.json: {name} must be a number", given=repr(value), fix="mend the file")
    return {"temp": 1.0, **values}
