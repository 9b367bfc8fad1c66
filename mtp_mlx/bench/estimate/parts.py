"""The parts of a target and its drafter, each built alone with random weights, and what one pass over them takes.

Modules are made whole, which allocates nothing, and evaluated part by part. Layers that are alike are measured
together, as many of them as `PART_BYTES` hold but one at least; of the head, as many rows of the vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.switch_layers import SwitchLinear

from mtp_mlx.decoding.acceptance import Greedy
from mtp_mlx.decoding.drafts import Drafts
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.load import lay_out
from mtp_mlx.memory import ON_CPU
from mtp_mlx.models.config import DecoderConfig, LayerConfig
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.gemma4_config import AssistantConfig
from mtp_mlx.models.registry import new_target
from mtp_mlx.models.target import Decoder
from mtp_mlx.steps import RowsStep
from mtp_weights.recipe import Recipe

PART_BYTES = 1 << 28
LOOKED_UP = 1024  # rows of tables that are only looked up: small ones cost the same
DTYPE = mx.float32 if ON_CPU else mx.bfloat16  # as `load` keeps weights that are not quantized


@dataclass(frozen=True)
class Part:
    """A part, ready to run.

    Attributes:
        times: how often a pass over the whole model takes as long as one over this part.
        run: does a pass over so many rows (or draft steps), and gives what to wait for.
        nbytes: of the weights that were built.
    """

    name: str
    times: float
    run: Callable[[int], list[mx.array]]
    nbytes: int


def target_parts(config: DecoderConfig, recipe: Recipe | None, context: int) -> Iterator[Part]:
    """The kinds of layers, one after another, and then embedding and head together.

    Args:
        recipe: how the weights are quantized; None for 16 bits (on a CPU, 32).
        context: tokens that the key-value store holds.
    """
    config = config.with_small_tables(LOOKED_UP)
    kinds: dict[LayerConfig, list[int]] = {}
    for index, layer in enumerate(config.layers):
        kinds.setdefault(layer, []).append(index)
    for kind, indices in kinds.items():
        yield _layers(config, recipe, context, kind, indices)
    yield _ends(config, recipe)


def together(parts: Sequence[Part]) -> Part:
    """Parts that are there all at once, one after another, as one: what is left in caches is then as it will be."""

    def run(rows: int) -> list[mx.array]:
        return [array for part in parts for array in part.run(rows)]

    return Part("the whole target", 1, run, sum(part.nbytes for part in parts))


def drafter_part(config: AssistantConfig, target: DecoderConfig, context: int) -> Part:
    """The whole drafter, not quantized, over the keys and values of a target of which nothing else is there."""
    owners = tuple(target.layers[target.last_owner(kind)] for kind in target.kv_types)
    small = replace(target, layers=owners, vocab_size=LOOKED_UP)
    embedding = new_target(small)  # of which the drafter asks nothing but the embedding: its layers are never evaluated
    drafter = _ready(_quantized(Gemma4Assistant(config), None))
    mx.eval(_quantized(embedding, None).model.embed_tokens.parameters())
    cache = _filled_cache(small, context)
    token, hidden = mx.zeros((1, 1), mx.int32), mx.random.normal((1, 1, target.hidden_size)).astype(DTYPE)
    mx.eval(drafter.parameters(), cache.arrays, hidden)
    compiled: dict[int, Callable] = {}

    def draft(steps: int, token: mx.array, hidden: mx.array, arrays: list[mx.array]) -> mx.array:
        def pick(drafter: Gemma4Assistant, h: mx.array) -> mx.array:
            return drafter.argmax(h) % LOOKED_UP

        return drafter.draft(embedding, KVCache.over(small, arrays), token, hidden, steps, pick)

    def run(steps: int) -> list[mx.array]:
        if steps not in compiled:
            compiled[steps] = mx.compile(lambda *arrays: draft(steps, *arrays))
        return [compiled[steps](token, hidden, cache.arrays)]

    return Part("drafter", 1, run, _nbytes(drafter))


def _layers(
    config: DecoderConfig, recipe: Recipe | None, context: int, kind: LayerConfig, indices: Sequence[int]
) -> Part:
    """As many layers of one kind as there is room for."""
    model = _quantized(new_target(config), recipe).model
    layers = [_ready(model.layers[i]) for i in indices[: _how_many(model.layers[indices[0]], len(indices))]]
    model.layers = layers
    others = [config.layers[config.last_owner(other)] for other in config.kv_types]
    small = replace(config, layers=(*others, *(kind for _ in layers)))
    for index, layer in enumerate(layers, start=len(others)):
        layer.self_attn.index = index
    mx.eval([layer.parameters() for layer in layers])
    cache = _filled_cache(small, context)
    inputs: dict[int, tuple[mx.array, list[mx.array]]] = {}

    @mx.compile
    def forward(x: mx.array, ple: list[mx.array], arrays: list[mx.array]) -> tuple[mx.array, list[mx.array]]:
        cache = KVCache.over(small, arrays)
        return _through(model, x, ple[0] if ple else None, cache), cache.arrays

    def run(rows: int) -> list[mx.array]:
        if rows not in inputs:
            inputs[rows] = _inputs(config, rows, len(layers))
        out, cache.arrays = forward(*inputs[rows], cache.arrays)
        return [out, *cache.arrays]

    name = f"{kind.layer_type.split('_')[0]} layer" + ("" if kind.owns_kv else " (shared keys)")
    return Part(name, len(indices) / len(layers), run, sum(map(_nbytes, layers)))


def _through(decoder: Decoder, x: mx.array, ple: mx.array | None, cache: KVCache) -> mx.array:
    step = RowsStep(cache, x.shape[1])
    step.kv = {kind: tuple(cache.shared(kind).state) for kind in cache.config.kv_types}  # for those that own none
    return decoder.run(range(len(decoder.layers)), x, ple, step)


def _ends(config: DecoderConfig, recipe: Recipe | None) -> Part:
    """Embedding, per-layer inputs, final norm, head and choice, over a part of the vocabulary."""
    bits = 8 * DTYPE.size if recipe is None else recipe.parameters["bits"]
    vocabulary = min(config.vocab_size, _round_down(PART_BYTES * 8 // (bits * config.hidden_size)))
    model = new_target(replace(config, vocab_size=vocabulary))
    model.model.layers = []
    model = _ready(_quantized(model, recipe))
    mx.eval(model.parameters())

    @mx.compile
    def forward(ids: mx.array, hidden: mx.array) -> list[mx.array]:
        x = model.model.embed(ids)
        per_layer = model.model.per_layer_inputs(ids, x)
        looked_up = [] if per_layer is None else [per_layer]
        logits = model.logits(model.model.norm(hidden))
        return [x, *looked_up, *Greedy().settle(logits, Drafts(ids[:, 1:]), None, None)]

    def run(rows: int) -> list[mx.array]:
        ids = mx.zeros((1, rows), mx.int32)
        hidden = mx.ones((1, rows, config.hidden_size), DTYPE)
        return forward(ids, hidden)

    return Part("embedding and head", config.vocab_size / vocabulary, run, _nbytes(model))


def _inputs(config: DecoderConfig, rows: int, layers: int) -> tuple[mx.array, list[mx.array]]:
    x = mx.random.normal((1, rows, config.hidden_size)).astype(DTYPE)
    width = config.per_layer_width
    ple = [mx.random.normal((1, rows, layers, width)).astype(DTYPE)] if width else []
    mx.eval(x, ple)
    return x, ple


def _filled_cache(config: DecoderConfig, context: int) -> KVCache:
    cache = KVCache(config)
    cache.set_length(context)
    cache.reserve(cache.max_rows)
    for layer in cache:
        empty = mx.zeros((1, layer.layer.num_key_value_heads, 0, layer.layer.head_dim), DTYPE)
        cache.allocate(layer, (empty, empty))
    mx.eval(cache.arrays)
    return cache


def _quantized(module: nn.Module, recipe: Recipe | None) -> nn.Module:
    module.set_dtype(DTYPE)
    if recipe is None:
        return module

    def how(path: str, leaf: nn.Module) -> dict | bool:
        quantizable = isinstance(leaf, nn.Linear | nn.Embedding | SwitchLinear)
        return (quantizable and recipe.for_tensor(f"{path}.weight", leaf.weight.shape)) or False

    nn.quantize(module, class_predicate=how)
    for leaf in tree_flatten(module.leaf_modules(), is_leaf=nn.Module.is_module):
        if "scales" in leaf[1]:
            leaf[1].update({name: _drawn(array) for name, array in leaf[1].parameters().items()})
    return module


def _drawn(array: mx.array) -> mx.array:
    """Random numbers of the same shape: quantizing others takes minutes on a CPU, and their memory in 32 bits."""
    if array.dtype == mx.uint32:
        return mx.random.randint(0, 2**31, array.shape, array.dtype)
    return (0.01 * mx.random.normal(array.shape)).astype(array.dtype)


def _ready(module: nn.Module) -> nn.Module:
    lay_out(module)
    module.eval()
    return module


def _how_many(layer: nn.Module, most: int) -> int:
    return max(1, min(most, PART_BYTES // _nbytes(layer)))


def _round_down(count: int) -> int:
    return max(64, count // 64 * 64)


def _nbytes(module: nn.Module) -> int:
    return sum(math.prod(array.shape) * array.dtype.size for _, array in tree_flatten(module.parameters()))
