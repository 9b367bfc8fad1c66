"""The distribution that tokens are drawn from: filters and temperature, for the target and for its drafter alike.

Order and meaning as in mlx-lm's `make_sampler`: top-p, min-p and XTC look at the probabilities at temperature 1, top-k
comes after them, the temperature last. A filter keeps whatever ties with the last token it keeps.

Values are arrays with a row a slot (`Controls`), so that other values need no new trace; which filters there are at all
is fixed (`Filters`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

Sampler = Callable[[mx.array], mx.array]
LogitsProcessor = Callable[[mx.array, mx.array], mx.array]

COLDEST = 1e-6  # below, log-probabilities ÷ temperature leave float32's range; at this one they are as good as greedy
_ALL = 2**31 - 1


@dataclass(frozen=True)
class Sampling:
    """How to draw tokens. `mtp_mlx.sampler.make_sampler` makes it from checked values and documents each.

    As a callable it is a sampler for mlx-lm: log-probabilities [N, V] -> ids [N], from MLX's random state.
    """

    temp: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    min_tokens_to_keep: int = 1
    top_k: int = 0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    xtc_special_tokens: tuple[int, ...] = ()
    draft_temp: float | None = None
    seed: int | None = None
    lenient: bool = False

    @property
    def is_reproducible(self) -> bool:
        """Whether the same tokens come each time, however much is drafted."""
        return not self.lenient and (self.temp == 0 or self.seed is not None)

    def __call__(self, logprobs: mx.array) -> mx.array:
        filters, controls = Filters.of([self]), Controls.of([self])
        probs = distribution(logprobs[None], filters, controls, controls.temp)[0]
        return draw(probs, mx.random.uniform(shape=probs.shape[:-1]))


class Filters(NamedTuple):
    """Which filters some row uses.

    Attributes:
        sorted: how many of the likeliest tokens have to be put in order; 0 for all of them, None for none.
        top_p, min_p: whether a row uses them.
        min_tokens_to_keep: of min-p.
        greedy: whether a row has temperature 0.
        xtc: probability, threshold and special tokens of XTC, where it is used.
    """

    sorted: int | None
    top_p: bool
    min_p: bool
    min_tokens_to_keep: int
    greedy: bool
    xtc: tuple[float, float, tuple[int, ...]] | None

    @classmethod
    def of(cls, rows: Sequence[Sampling]) -> "Filters":
        """The filters of all rows. XTC and min_tokens_to_keep are the first row's."""
        first, top_p, top_k = rows[0], any(row.top_p < 1 for row in rows), [row.top_k for row in rows]
        width = max(top_k) if all(top_k) else 0 if top_p or any(top_k) else None
        xtc = (first.xtc_probability, first.xtc_threshold, first.xtc_special_tokens)
        return cls(
            sorted=0 if first.xtc_probability and width else width,  # top-k comes after XTC, top-p before
            top_p=top_p,
            min_p=any(row.min_p > 0 for row in rows),
            min_tokens_to_keep=first.min_tokens_to_keep,
            greedy=any(row.temp == 0 for row in rows),
            xtc=xtc if first.xtc_probability else None,
        )


class Controls(NamedTuple):
    """The rows' values, all on the device: [B, 1, 1] each, and the root of each row's randomness [B, 2]."""

    key: mx.array
    temp: mx.array
    draft_temp: mx.array
    top_k: mx.array
    top_p: mx.array
    min_p: mx.array

    @classmethod
    def of(cls, rows: Sequence[Sampling]) -> "Controls":
        def column(values: list, dtype: mx.Dtype = mx.float32) -> mx.array:
            return mx.array(values, dtype)[:, None, None]

        return cls(
            key=mx.stack([root_key(row.seed) for row in rows]),
            temp=column([row.temp for row in rows]),
            draft_temp=column([draft_temperature(row) for row in rows]),
            top_k=column([row.top_k or _ALL for row in rows], mx.int32),
            top_p=column([row.top_p for row in rows]),
            min_p=column([row.min_p for row in rows]),
        )


def draft_temperature(sampling: Sampling) -> float:
    """The drafter's temperature: the target's by default, and always for a greedy target."""
    return sampling.temp if sampling.draft_temp is None or sampling.temp == 0 else sampling.draft_temp


def root_key(seed: int | None) -> mx.array:
    """A random key [2], uint32; without a seed a fresh one from MLX's random state."""
    return mx.random.randint(0, _ALL, (2,)).view(mx.uint32) if seed is None else mx.random.key(seed)


def distribution(logits: mx.array, filters: Filters, controls: Controls, temp: mx.array) -> mx.array:
    """Probabilities [B, L, N], float32, that logits [B, L, N] become at temperatures `temp` [B, 1, 1].

    N is the vocabulary, or a drafter's candidates.
    """
    logprobs = logits.astype(mx.float32)
    if filters.top_p:  # everything else is indifferent to a constant
        logprobs = log_softmax(logprobs)
    by_mass = mx.maximum(_top_p_cut(logprobs, filters, controls), _min_p_cut(logprobs, filters, controls))
    if filters.xtc is None:
        cut = mx.maximum(by_mass, _top_k_cut(logprobs, filters, controls))
        return _tempered(logprobs, cut, filters, temp)
    probability, threshold, special = filters.xtc
    kept = mx.where(logprobs >= by_mass, logprobs, -mx.inf)
    without = mx.where(_top_choices(kept, threshold, special), -mx.inf, kept)
    kept, without = (_tempered(x, _top_k_cut(x, filters, controls), filters, temp) for x in (kept, without))
    return (1 - probability) * kept + probability * without


def _tempered(logprobs: mx.array, cut: mx.array, filters: Filters, temp: mx.array) -> mx.array:
    """Softmax at a temperature over what reaches `cut`; at temperature 0 the likeliest token, the lowest id."""
    probs = mx.softmax(mx.where(logprobs >= cut, logprobs / mx.maximum(temp, COLDEST), -mx.inf), axis=-1)
    if not filters.greedy:
        return probs
    likeliest = mx.arange(logprobs.shape[-1]) == mx.argmax(logprobs, axis=-1, keepdims=True)
    return mx.where(temp > 0, probs, likeliest.astype(probs.dtype))


def _descending(logprobs: mx.array, filters: Filters) -> mx.array:
    """The likeliest log-probabilities in order [B, L, as many as have to be sorted]."""
    if filters.sorted and filters.sorted < logprobs.shape[-1]:
        logprobs = mx.topk(logprobs, filters.sorted, axis=-1)
    return -mx.sort(-logprobs, axis=-1)


def _top_k_cut(logprobs: mx.array, filters: Filters, controls: Controls) -> mx.array:
    """The lowest log-probability [B, L, 1] that top-k keeps."""
    if filters.sorted is None:
        return mx.array(-mx.inf)
    ordered = _descending(logprobs, filters)
    last = mx.minimum(controls.top_k, ordered.shape[-1]) - 1
    return mx.take_along_axis(ordered, mx.broadcast_to(last, (*ordered.shape[:-1], 1)), axis=-1)


def _top_p_cut(logprobs: mx.array, filters: Filters, controls: Controls) -> mx.array:
    """The lowest log-probability [B, L, 1] that top-p keeps: those above a kept token have less than top_p."""
    if not filters.top_p:
        return mx.array(-mx.inf)
    ordered = _descending(logprobs, filters)
    above = mx.cumsum(mx.exp(ordered), axis=-1, inclusive=False)
    kept = (above < controls.top_p).sum(axis=-1, keepdims=True)
    cut = mx.take_along_axis(ordered, kept - 1, axis=-1)
    return mx.where(controls.top_p < 1, cut, -mx.inf)


def _min_p_cut(logprobs: mx.array, filters: Filters, controls: Controls) -> mx.array:
    """The lowest log-probability [B, L, 1] that min-p keeps, as a share of the likeliest token's probability."""
    if not filters.min_p:
        return mx.array(-mx.inf)
    cut = logprobs.max(axis=-1, keepdims=True) + mx.log(controls.min_p)
    if filters.min_tokens_to_keep == 1:
        return cut
    keep = min(filters.min_tokens_to_keep, logprobs.shape[-1])
    return mx.minimum(cut, mx.topk(logprobs, keep, axis=-1).min(axis=-1, keepdims=True))


def _top_choices(logprobs: mx.array, threshold: float, special: tuple[int, ...]) -> mx.array:
    """What XTC ("exclude top choices", as in mlx-lm) leaves out: every token above `threshold` but the least likely."""
    probs = mx.softmax(logprobs, axis=-1)
    least = mx.where(probs > threshold, probs, mx.inf).min(axis=-1, keepdims=True)
    excluded = probs > least
    if special:
        excluded = excluded & ~(mx.arange(probs.shape[-1])[:, None] == mx.array(special)).any(axis=-1)
    return excluded


def draw(probs: mx.array, uniform: mx.array) -> mx.array:
    """The index that a uniform number [...] in [0, 1) picks from probabilities [..., N], which need not add up to 1."""
    mass = mx.cumsum(probs, axis=-1)
    # Rounding must not push the mark to the very end, past the last index with any mass.
    mark = (uniform * (1 - 2.0**-20))[..., None] * mass[..., -1:]
    return mx.argmax(mass > mark, axis=-1)


def log_softmax(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)
