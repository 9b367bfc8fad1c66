"""How much memory a pair needs before it is loaded, and how much this machine has for it.

Weights are counted from a checkpoint's own tensors where it is on this machine, and from its configuration otherwise:
the modules are built, which allocates nothing, and their shapes added up.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mtp_mlx.errors import UserError
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.config import DecoderConfig
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.gemma4_config import DRAFTER_TYPES
from mtp_mlx.models.registry import drafter_config, new_target, target_config
from mtp_weights.layout import drafter_weights, target_weights
from mtp_weights.read import read_config, read_weights
from mtp_weights.recipe import Recipe, nbytes

# On a CPU, 16-bit weights are kept as float32 (see `load.py`), and so are keys and values.
ON_CPU = mx.default_device().type == mx.DeviceType.cpu
ITEM_BYTES = 4 if ON_CPU else 2
_PART = 0.9  # of a machine's memory, where the system does not say how much of it one program should take


@dataclass(frozen=True)
class Needs:
    """Bytes that a pair needs: weights, and the keys and values of one sequence. Activations come on top."""

    target: int
    drafter: int
    key_values: int

    @property
    def total(self) -> int:
        return self.target + self.drafter + self.key_values


def available() -> int:
    """Bytes that a model may take: what Metal recommends as the working set, or a part of the CPU's memory."""
    if ON_CPU:
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _PART)
    info = mx.device_info()
    return int(info.get("max_recommended_working_set_size", info["memory_size"] * _PART))


def needs(target: Path, drafter: Path | None, context: int) -> Needs:
    """What the checkpoints in two folders need, from their tensors.

    Args:
        context: tokens, prompt and reply.

    Raises:
        UserError: a folder holds no readable checkpoint.
    """
    config = target_config(read_config(target))
    weights = checkpoint_bytes(target)
    return Needs(weights, 0 if drafter is None else checkpoint_bytes(drafter), key_value_bytes(config, context))


def checkpoint_bytes(folder: Path) -> int:
    """Bytes of the text model or drafter in `folder`, once it is loaded; only headers are read."""
    raw, weights = read_config(folder), read_weights(folder)
    if raw.get("model_type") in DRAFTER_TYPES:
        weights = drafter_weights(weights)
    else:
        config = target_config(raw)
        weights = target_weights(weights, len(config.kv_owners), config.tie_word_embeddings)
    return sum(array.size * _loaded_item_bytes(array.dtype) for array in weights.values())


def estimated_bytes(config: dict[str, Any], recipe: Recipe | None, item_bytes: int = 2) -> int:
    """Bytes of a target or drafter with this config.json, quantized by `recipe` or not.

    Args:
        item_bytes: of a number that is not quantized.
    """
    shapes = parameter_shapes(config)
    quantized = {name: None if recipe is None else recipe.for_tensor(name, shape) for name, shape in shapes.items()}
    return sum(nbytes(shape, quantized[name], item_bytes) for name, shape in shapes.items())


def parameter_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor of a target or drafter with this config.json, before quantization."""
    return {name: array.shape for name, array in tree_flatten(_module(config).parameters())}


def key_value_bytes(config: DecoderConfig, context: int) -> int:
    """Bytes of the keys and values of one sequence of `context` tokens."""
    context = min(context, config.max_position_embeddings)
    ring = KVCache(config).ring
    owners = (config.layers[i] for i in config.kv_owners)
    rows = sum(
        2 * layer.num_key_value_heads * layer.head_dim * (ring if layer.is_sliding else context) for layer in owners
    )
    return rows * ITEM_BYTES


def check_fits(need: Needs, context: int, smaller: str | None) -> None:
    """Refuses what this machine cannot hold.

    Args:
        context: tokens that the keys and values were counted for.
        smaller: the name of a variant that fits, for the message.

    Raises:
        UserError: it does not fit; with the numbers.
    """
    if need.total <= available():
        return
    parts = f"target {gigabytes(need.target)}, drafter {gigabytes(need.drafter)}"
    raise UserError(
        f"the pair needs {gigabytes(need.total)} of memory, this machine has {gigabytes(available())} for a model",
        given=f"{parts}, keys and values of {context} tokens {gigabytes(need.key_values)}",
        fix=(f"use {smaller}, or" if smaller else "use a smaller model, or") + " --force to try it all the same",
    )


def gigabytes(count: int) -> str:
    """Bytes in words, in decimal units as disks and downloads are sold."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _module(config: dict[str, Any]) -> nn.Module:
    if config.get("model_type") in DRAFTER_TYPES:
        return Gemma4Assistant(drafter_config(config))
    return new_target(target_config(config))


def _loaded_item_bytes(dtype: mx.Dtype) -> int:
    return 4 if ON_CPU and dtype in (mx.bfloat16, mx.float16) else dtype.size
