"""Converts a checkpoint: quantizes or dequantizes it or changes its dtype, tensor by tensor, and writes what mlx-lm
loads too.

Tensors are mapped from the source and let go one by one, so that memory holds one shard of the output and one tensor of
the source, whatever the size of the model.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from mtp_mlx.errors import MisuseError, UserError
from mtp_mlx.memory import parameter_shapes
from mtp_mlx.mlx_lm_config import is_text_only, mlx_lm_config
from mtp_mlx.models.gemma4_config import DRAFTER_TYPES
from mtp_mlx.models.registry import TARGET_TYPES, check_model_type, drafter_config, target_config
from mtp_weights.layout import drafter_weights, target_weights
from mtp_weights.model_card import model_card
from mtp_weights.quantization import module_quantization, quantization_of, without_quantization
from mtp_weights.recipe import MIXED, Parameters, Recipe
from mtp_weights.source import Source, open_source
from mtp_weights.write import SHARD_BYTES, write_checkpoint

DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}
_TOKEN_ORDERING = "masked_embedding.token_ordering"
_PARTS = ("weight", "scales", "biases")
_WRAPPER = "language_model."  # what stands before the names in a multimodal checkpoint of mlx-lm's

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Options:
    """What to convert to, by mlx-lm's names.

    Attributes:
        quantize: whether to quantize; the four below say how, None for MLX's default for the mode.
        mixed: a recipe of two widths, see `recipe.MIXED`.
        dequantize: whether to turn a quantized checkpoint into one that is not.
        dtype: of all numbers that are not quantized, and of scales; None to leave them as they are.
    """

    quantize: bool = False
    q_bits: int | None = None
    q_group_size: int | None = None
    q_mode: str = "affine"
    mixed: str | None = None
    dtype: str | None = None
    dequantize: bool = False

    def __post_init__(self):
        if self.quantize and self.dequantize:
            raise MisuseError("a checkpoint is quantized or dequantized", fix="give one of -q and --dequantize")
        says_how = (self.q_bits, self.q_group_size, self.q_mode, self.mixed) != (None, None, "affine", None)
        if says_how and not self.quantize:
            raise MisuseError("these options say how to quantize", fix="give -q, too")
        if not self.quantize and not self.dequantize and self.dtype is None:
            raise MisuseError("nothing to convert", fix="give -q to quantize, --dequantize, or --dtype")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise MisuseError("no such dtype", given=self.dtype, fix=f"there are {', '.join(DTYPES)}")
        if self.quantize:
            self._check_recipe()

    def _check_recipe(self) -> None:
        try:
            self.recipe(num_layers=0)
        except UserError as error:  # of what MLX does not have; here it is an option that can never work
            raise MisuseError(error.problem, given=error.given, fix=error.fix) from error

    def recipe(self, num_layers: int) -> Recipe | None:
        if not self.quantize:
            return None
        return Recipe.of(self.q_bits, self.q_group_size, self.q_mode, self.mixed, num_layers)


@dataclass(frozen=True)
class Result:
    """What a conversion wrote.

    Attributes:
        bits_per_weight: bytes of all tensors in bits, divided by the number of weights.
        peak_memory: what it took at most, in bytes.
    """

    folder: Path
    bits_per_weight: float
    peak_memory: int


def convert(
    source: Path,
    folder: Path,
    options: Options,
    *,
    name: str = "",
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
) -> Result:
    """Converts a target or drafter into the new `folder`.

    Args:
        source: a checkpoint folder, or a GGUF file.
        name: of the source, for the model card.
        shard_bytes: largest file of weights to write.
        progress: called with (tensors done, tensors in all).

    Raises:
        MisuseError: the source is quantized already, or is not and is to be dequantized.
        UserError: the source is no target or drafter, or is damaged, or the folder cannot be written.
    """
    checkpoint = open_source(source)
    raw = checkpoint.config
    check_model_type(raw, (*TARGET_TYPES, *DRAFTER_TYPES), "model")
    if options.quantize and quantization_of(raw) is not None:
        raise MisuseError("the checkpoint is quantized already", given=source, fix="convert the one in 16 bits")
    if options.dequantize and quantization_of(raw) is None:
        raise MisuseError("the checkpoint is not quantized", given=source, fix="use it as it is")
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    conversion = _Conversion(checkpoint, options)
    tensors = conversion.tensors(progress or (lambda done, total: None))
    config = conversion.config()
    card = model_card(config, name or source.name, conversion.facts())
    extras = {**checkpoint.files(), "README.md": card.encode()}
    write_checkpoint(folder, tensors, config, extras, shard_bytes=shard_bytes)
    return Result(folder, 8 * conversion.written / conversion.size, mx.get_peak_memory() - before)


class _Conversion:
    """One source on its way to its new form.

    Attributes:
        size: weights in it.
        written: bytes of all tensors that were given out so far.
        packed: path of each module of the source that is to be dequantized -> how it was quantized.
        quantized: path of each module that is quantized -> how.
    """

    def __init__(self, source: Source, options: Options):
        raw = source.config
        self.raw, self.options, self.dtype = raw, options, options.dtype or source.dtype
        self.is_drafter = raw["model_type"] in DRAFTER_TYPES
        weights = source.weights()
        if self.is_drafter:
            layers = drafter_config(raw).text.layers
            self.weights = drafter_weights(weights)
            ordering = [array for key, array in weights.items() if key.endswith(_TOKEN_ORDERING)]
            self.weights |= dict.fromkeys(
                [_TOKEN_ORDERING] if ordering else [], *ordering
            )  # as it was, not as we use it
        else:
            self.text = target_config(raw)
            layers = self.text.layers
            self.weights = target_weights(weights, len(self.text.kv_owners), self.text.tie_word_embeddings)
        self.recipe = options.recipe(len(layers))
        self.prefix = "" if self.is_drafter or is_text_only(raw) else _WRAPPER
        self.size = sum(math.prod(shape) for shape in parameter_shapes(raw).values())
        self.written = 0
        self.packed = self._packed() if options.dequantize else {}
        self.quantized = {} if self.recipe is None else self._quantized()

    def _quantized(self) -> dict[str, Parameters]:
        how = {name: self.recipe.for_tensor(name, array.shape) for name, array in self.weights.items()}
        return {self.prefix + name.removesuffix(".weight"): each for name, each in how.items() if each is not None}

    def _packed(self) -> dict[str, Parameters]:
        quantization, shapes = quantization_of(self.raw), parameter_shapes(self.raw)
        paths = [name.removesuffix(".scales") for name in self.weights if name.endswith(".scales")]
        return {
            path: module_quantization(path, quantization, self.weights, shapes[f"{path}.weight"][-1]) for path in paths
        }

    def tensors(self, progress: Progress) -> Iterator[tuple[str, mx.array]]:
        """The tensors of the output, each computed when it is asked for and then let go."""
        total = len(self.weights)
        while self.weights:
            pieces = self._convert(*self._next())
            mx.eval(list(pieces.values()))
            while pieces:
                key = next(iter(pieces))
                self.written += pieces[key].nbytes
                yield key, pieces.pop(key)
            progress(total - len(self.weights), total)

    def _next(self) -> tuple[str, mx.array]:
        """Takes a tensor of the source; of one that is to be dequantized, all parts at once."""
        name = next(iter(self.weights))
        path = name.rpartition(".")[0]
        if path not in self.packed:
            return self.prefix + name, self.weights.pop(name)
        parts = [self.weights.pop(f"{path}.{kind}", None) for kind in _PARTS]
        parts = [None if part is None else self._cast(part) for part in parts]  # before, or 16 bits would round twice
        return f"{self.prefix}{path}.weight", mx.dequantize(*parts, **self.packed[path])

    def _cast(self, array: mx.array) -> mx.array:
        if self.dtype is None or not mx.issubdtype(array.dtype, mx.floating):
            return array
        return array.astype(DTYPES[self.dtype])

    def _convert(self, name: str, array: mx.array) -> dict[str, mx.array]:
        array = self._cast(array)
        path = name.removesuffix(".weight")
        if path not in self.quantized:
            return {name: array}
        parts = mx.quantize(array, **self.quantized[path])
        return {f"{path}.{kind}": part for kind, part in zip(_PARTS, parts, strict=False)}

    def config(self) -> dict[str, Any]:
        """config.json of the output, in the dialect that mlx-lm reads, with how each module is quantized."""
        config = self.raw if self.is_drafter else mlx_lm_config(self.raw, self.text)
        if self.dtype is not None:
            config = {**config, "dtype": self.dtype}
        if self.options.dequantize:
            return without_quantization(config)
        if self.recipe is None:
            return config
        main = self.recipe.parameters
        own = {path: how for path, how in self.quantized.items() if how != main}
        block = {**main, **own}
        return {**config, "quantization": block, "quantization_config": block}

    def facts(self) -> list[str]:
        """What the model card says of the conversion."""
        dtype = self.dtype or "as in the original"
        if self.recipe is None:
            return [f"dtype: {dtype}"] + ["dequantized: it keeps the rounding of the quantized one"] * bool(self.packed)
        main = self.recipe.parameters
        own = sum(how != main for how in self.quantized.values())
        mixed = f", recipe {self.options.mixed} {MIXED[self.options.mixed]}" if self.options.mixed else ""
        return [
            f"quantization: {main['mode']}, {main['bits']} bits, group size {main['group_size']}{mixed}",
            f"modules with bits of their own: {own} (per-layer embeddings and router have 8 at least)",
            f"numbers that are not quantized: {dtype}",
        ]
