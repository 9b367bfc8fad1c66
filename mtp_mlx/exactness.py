"""Whether a row's result depends on how many rows are computed together, to the bit, for each kind of layer.

Verification computes several rows at once, plain decoding one. They are equal to the bit only where MLX takes kernels
that add up in the same order for both. Each layer is measured by itself, on the inputs and the keys and values that
one-row decoding had, so that a difference is that of this layer and not of one before it.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx

from mtp_mlx.decoding.prefill import prefill
from mtp_mlx.decoding.widths import Widths, exact_widths, price_of
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.target import Target
from mtp_mlx.steps import RowsStep

HEAD, PER_LAYER = "head", "per-layer embeddings"


@dataclass(frozen=True)
class Kind:
    """All layers of one kind.

    Attributes:
        name: "sliding", "full", "KV-shared sliding", "KV-shared full", "per-layer embeddings" or "head".
        layers: how many there are.
        differs: widths at which some row differs from the row computed alone.
        unlike_widest: widths, from 2 on, at which some row differs from the row computed in the widest pass.
        largest: the largest difference of any number, relative to the largest number of its layer.
    """

    name: str
    layers: int
    differs: tuple[int, ...]
    unlike_widest: tuple[int, ...]
    largest: float

    @property
    def is_exact(self) -> bool:
        return not self.differs

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ExactWay:
    """How `exact=True` decodes here.

    Attributes:
        widths: rows computed for rows wanted.
        price: time of a plain step, divided by that of an ordinary one.
    """

    widths: Widths
    price: float

    @property
    def is_free(self) -> bool:
        """Whether plain decoding is what it always is: its output is then that of ordinary decoding to the bit."""
        return self.widths.plain == 1

    def to_dict(self) -> dict[str, Any]:
        return {"computed_rows": list(self.widths.computed), "price": self.price}


def exact_way(model: Target, tokens: int, num_draft_tokens: int | str) -> ExactWay:
    """Measures what `exact=True` does for a generation of so many tokens, prompt included.

    Raises:
        UserError: there is no exact way here.
    """
    cache = model.make_cache()
    cache.require(tokens + cache.max_rows)
    widths = exact_widths(model, cache.capacity, num_draft_tokens)
    return ExactWay(widths, price_of(model, widths, cache.capacity))


def measure_kinds(model: Target, ids: list[int], most_rows: int) -> list[Kind]:
    """Compares widths 1 … `most_rows`.

    Args:
        ids: token ids to run on, more than `most_rows`; the last `most_rows` are the rows.
    """
    trace = _Trace(model, ids, most_rows)
    found: dict[str, list[_Comparison]] = {}
    for name, part in trace.parts():
        found.setdefault(name, []).append(_compare(part, most_rows))
    return [_sum_up(name, comparisons) for name, comparisons in found.items()]


@dataclass(frozen=True)
class _Comparison:
    differs: set[int]
    unlike_widest: set[int]
    largest: float


def _sum_up(name: str, comparisons: list[_Comparison]) -> Kind:
    return Kind(
        name,
        len(comparisons),
        tuple(sorted(set.union(*(each.differs for each in comparisons)))),
        tuple(sorted(set.union(*(each.unlike_widest for each in comparisons)))),
        max(each.largest for each in comparisons),
    )


def _compare(part: "_Part", most_rows: int) -> _Comparison:
    """Runs one part at every width from every row; compares with rows computed alone, and with all of them together."""
    alone = mx.concatenate([part.run(row, 1) for row in range(most_rows)], axis=1)
    widest = part.run(0, most_rows)
    differs, unlike, largest = set(), set(), 0.0
    for width in range(2, most_rows + 1):
        for start in range(most_rows - width + 1):
            rows = part.run(start, width)
            own = slice(start, start + width)
            if not mx.array_equal(rows, alone[:, own]).item():
                differs.add(width)
                gap = mx.abs(rows - alone[:, own]).max() / mx.maximum(mx.abs(alone).max(), 1e-30)
                largest = max(largest, gap.astype(mx.float32).item())
            if not mx.array_equal(rows, widest[:, own]).item():
                unlike.add(width)
    return _Comparison(differs, unlike, largest)


class _Trace:
    """What one-row decoding computes over the last rows of `ids`: the inputs of every layer, and the final cache."""

    def __init__(self, model: Target, ids: list[int], rows: int):
        self.model, self.rows = model, rows
        self.start = len(ids) - rows
        self.tokens = mx.array([ids[self.start :]])
        cache = model.make_cache(max_draft_tokens=max(rows - 1, 1))
        prefill(model, mx.array([ids[: self.start]]), cache)
        steps = [self._step(cache, self.tokens[:, i : i + 1]) for i in range(rows)]
        self.embedded, self.inputs, self.hidden, self.per_layer = (list(each) for each in zip(*steps, strict=True))
        self.arrays = cache.arrays
        mx.eval(self.arrays, self.inputs, self.hidden)

    def _step(self, cache: KVCache, token: mx.array) -> tuple:
        inner = self.model.model
        cache.reserve(1)
        step = RowsStep(cache, 1)
        embedded = x = inner.embed(token)
        per_layer = inner.per_layer_inputs(token, x)
        inputs = []
        for i in range(len(inner.layers)):
            inputs.append(x)
            x = inner.run([i], x, per_layer, step)
        step.commit()
        return embedded, inputs, inner.norm(x), per_layer

    def parts(self) -> Iterator[tuple[str, "_Part"]]:
        """Every part of the model that computes on rows, with the name of its kind."""
        if self.per_layer[0] is not None:
            yield PER_LAYER, _PerLayerPart(self)
        for i, layer in enumerate(self.model.config.layers):
            kind = "sliding" if layer.is_sliding else "full"
            yield kind if layer.owns_kv else f"KV-shared {kind}", _LayerPart(self, i)
        yield HEAD, _HeadPart(self)

    def step(self, row: int, width: int) -> RowsStep:
        """A step that appends rows `row` … `row + width - 1` to what one-row decoding had before them."""
        cache = KVCache.over(self.model.config, self.arrays)
        cache.set_length(self.start + row)
        return RowsStep(cache, width)


class _Part:
    def __init__(self, trace: _Trace):
        self.trace = trace

    def run(self, row: int, width: int) -> mx.array:
        """The part's result [1, width, …] on rows `row` … `row + width - 1`, computed together."""
        raise NotImplementedError

    def rows(self, each: list[mx.array], row: int, width: int) -> mx.array:
        return mx.concatenate(each[row : row + width], axis=1)


class _PerLayerPart(_Part):
    def run(self, row: int, width: int) -> mx.array:
        tokens = self.trace.tokens[:, row : row + width]
        return self.trace.model.model.per_layer_inputs(tokens, self.rows(self.trace.embedded, row, width))


class _LayerPart(_Part):
    def __init__(self, trace: _Trace, index: int):
        super().__init__(trace)
        self.index = index
        self.inputs = [inputs[index] for inputs in trace.inputs]

    def run(self, row: int, width: int) -> mx.array:
        trace, config = self.trace, self.trace.model.config
        step, layer_type = trace.step(row, width), config.layers[self.index].layer_type
        if not config.layers[self.index].owns_kv:
            shared = KVCache.over(config, trace.arrays).shared(layer_type)
            step.kv[layer_type] = (shared.keys, shared.values)
        per_layer = None
        if trace.per_layer[0] is not None:
            per_layer = self.rows(trace.per_layer, row, width)
        return trace.model.model.run([self.index], self.rows(self.inputs, row, width), per_layer, step)


class _HeadPart(_Part):
    def run(self, row: int, width: int) -> mx.array:
        return self.trace.model.logits(self.rows(self.trace.hidden, row, width))
