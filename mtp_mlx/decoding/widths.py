"""How many rows to compute where a number of rows is wanted, so that every row comes out the same to the bit.

One row and several rows of a matrix product may take kernels that add up in another order. Which widths agree is
measured on the machine, for the model and the buffers that will be used; a pass over n rows then computes the next
larger number of rows that agrees with the widest pass, the last row repeated. Plain decoding under the same widths
gives the same bits: where one row agrees with the widest pass this is ordinary plain decoding, otherwise it is plain
decoding through the verification's width.
"""

import time
from dataclasses import dataclass
from statistics import median

import mlx.core as mx

from mtp_mlx.decoding.depth import MOST, PRIOR_ACCEPTANCE, PRIOR_SLOPE
from mtp_mlx.decoding.prefill import prefill
from mtp_mlx.errors import UserError
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.memo import weight_ids
from mtp_mlx.models.target import Target
from mtp_mlx.steps import RowsStep

MOST_ROWS = MOST + 1  # what the depth policy drafts at most, and the last token before
FREE_BONUS = 1.1  # what it is worth, as a factor of speed, that plain decoding computes one row as it always does
_TIMINGS = 7


@dataclass(frozen=True)
class Widths:
    """The number of rows to compute for each number of rows that is wanted.

    Attributes:
        computed: computed[n - 1] rows for n wanted ones.
    """

    computed: tuple[int, ...]

    @property
    def most(self) -> int:
        """The most rows that can be wanted."""
        return len(self.computed)

    @property
    def plain(self) -> int:
        """The rows that plain decoding computes for one: 1 where exactness costs it nothing."""
        return self.computed[0]

    def pad(self, rows: mx.array) -> mx.array:
        """Token ids [B, n] -> [B, computed], the last one repeated: what follows a row does not change it."""
        more = self.computed[rows.shape[1] - 1] - rows.shape[1]
        return mx.concatenate([rows, *[rows[:, -1:]] * more], axis=1) if more else rows


def exact_widths(model: Target, capacity: int, num_draft_tokens: int | str = "auto") -> Widths:
    """Finds widths at which rows agree. They are measured once for a model and a capacity.

    Args:
        capacity: rows of the buffers of full-attention layers, which take part in what kernels are chosen.
        num_draft_tokens: a number of drafts that must be possible; "auto" chooses how many may be.

    Raises:
        UserError: a row's result depends on its place among the others here, so that no number of rows is exact.
    """
    key, captured = ("widths", capacity, num_draft_tokens), weight_ids(model)
    known, widths = model.memo.get(key, (None, None))
    if known != captured:
        widths = _measure(model, capacity, num_draft_tokens)
        model.memo.put(key, (captured, widths))
    return widths


def _measure(model: Target, capacity: int, num_draft_tokens: int | str) -> Widths:
    is_open = num_draft_tokens == "auto"
    probe = _Probe(model, capacity, MOST_ROWS if is_open else max(num_draft_tokens + 1, 2))
    for widths in probe.candidates(is_open):
        if probe.confirms(widths):
            return widths
    raise UserError(
        "on this machine a row's result depends on its place among the others: verification cannot be exact",
        fix="decode with --no-draft",
    )


def price_of(model: Target, widths: Widths, capacity: int) -> float:
    """Time of a plain step under `widths`, divided by that of an ordinary one; 1.0 where they are the same."""
    if widths.plain == 1:
        return 1.0
    probe = _Probe(model, capacity, widths.plain)
    return median(probe.seconds(widths.plain) / probe.seconds(1) for _ in range(_TIMINGS))


class _Probe:
    """Passes over the same tokens at every width, at the end of full buffers: in empty ones, differences hide."""

    def __init__(self, model: Target, capacity: int, most: int):
        self.model, self.most = model, most
        self.tokens = mx.random.randint(0, model.config.vocab_size, (1, most), key=mx.random.key(0))
        cache = model.make_cache()
        cache.require(capacity)
        prefill(model, self.tokens[:, :1], cache)  # makes the buffers
        self.length = cache.capacity - most
        self.before = [cache.lengths, *(_filled(array, n) for n, array in enumerate(cache.arrays[1:]))]
        passes = [self.run(self.before, 0, width) for width in range(1, most + 1)]
        self.logits, self.after = zip(*passes, strict=True)

    def run(self, arrays: list[mx.array], start: int, width: int) -> tuple[mx.array, list[mx.array]]:
        """Logits [width, V] of rows `start` …, and the buffers with these rows in them."""
        cache = KVCache.over(self.model.config, arrays)
        cache.set_length(self.length + start)
        hidden = self.model.model.forward(self.tokens[:, start : start + width], RowsStep(cache, width))
        logits = self.model.logits(hidden)[0]
        mx.eval(logits, cache.arrays)
        return logits, cache.arrays

    def candidates(self, any_depth: bool) -> list[Widths]:
        """Widths by the first rows of each pass, the best ones first."""
        found = [self._up_to(most) for most in (range(2, self.most + 1) if any_depth else [self.most])]
        return sorted(found, key=lambda widths: (_worth(widths), widths.most), reverse=True)

    def _up_to(self, most: int) -> Widths:
        agreeing = [width for width in range(1, most + 1) if self._same(self.logits[width - 1], self.logits[most - 1])]
        return Widths(tuple(next(width for width in agreeing if width >= n) for n in range(1, most + 1)))

    def confirms(self, widths: Widths) -> bool:
        """Whether rows agree with the widest pass also where they stand at other places of a pass."""
        arrays, expected = self.after[widths.most - 1], self.logits[widths.most - 1]
        for width in sorted(set(widths.computed)):
            for start in sorted({min(1, widths.most - width), widths.most - width}):
                if not self._same(self.run(arrays, start, width)[0], expected[start:]):
                    return False
        return True

    def seconds(self, width: int) -> float:
        """How long a pass takes."""
        started = time.perf_counter()
        self.run(self.before, 0, width)
        return time.perf_counter() - started

    @staticmethod
    def _same(rows: mx.array, others: mx.array) -> bool:
        both = min(len(rows), len(others))
        return mx.array_equal(rows[:both], others[:both]).item()


def _worth(widths: Widths) -> float:
    """The speed to expect at the best depth, in plain steps, before anything is known of the pair."""
    tokens, chance, best = 0.0, 1.0, 0.0
    for rows in widths.computed:
        tokens += chance
        chance *= PRIOR_ACCEPTANCE
        best = max(best, tokens / (1 + PRIOR_SLOPE * (rows - 1)))
    return best * (FREE_BONUS if widths.plain == 1 else 1.0)


def _filled(buffer: mx.array, seed: int) -> mx.array:
    """Numbers as normalized keys and values have them, in place of a buffer."""
    return mx.random.normal(buffer.shape, buffer.dtype, key=mx.random.key(seed))
