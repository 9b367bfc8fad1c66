"""How a checkpoint's modules were quantized by MLX: the config's word, checked against the tensors.

Sizes by which a module's tensors are tied together, with in_dims its input width:
packed width · 32 = bits · in_dims, and number of scales in a row · group_size = in_dims.
"""

from typing import Any

import mlx.core as mx

from mtp_weights.errors import UserError
from mtp_weights.layout import module_paths

_BLOCKS = ("quantization", "quantization_config")
# Mode -> (bits, group sizes) that MLX has; the first of each is MLX's default.
_MODES = {
    "affine": ((4, 2, 3, 5, 6, 8), (64, 32, 128)),
    "mxfp4": ((4,), (32,)),
    "nvfp4": ((4,), (16,)),
    "mxfp8": ((8,), (32,)),
}


def quantization_of(config: dict[str, Any]) -> dict[str, Any] | None:
    """Reads MLX's `quantization` (or `quantization_config`) block of config.json.

    Returns:
        None for a checkpoint that is not quantized, else {"group_size", "bits", "mode", "modules"}, where
        "modules" maps canonical module paths (see `layout.py`) to {"group_size", "bits", "mode"}, or to None
        for a module that the config says is not quantized.

    Raises:
        UserError: quantized by something else than MLX, or to a width that MLX does not have.
    """
    block = _block(config)
    if block is None:
        return None
    modules = {}
    for path, entry in block.items():
        if entry is False or isinstance(entry, dict):
            modules |= dict.fromkeys(module_paths(path), parameters_of(entry, path) if entry else None)
    return {**parameters_of(block, "quantization"), "modules": modules}


def without_quantization(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json without the blocks that `quantization_of` reads."""
    kept = {key: value for key, value in config.items() if key not in _BLOCKS}
    return {**kept, "text_config": without_quantization(kept["text_config"])} if kept.get("text_config") else kept


def module_quantization(
    path: str,
    quantization: dict[str, Any] | None,
    weights: dict[str, mx.array],
    in_dims: int | None = None,
) -> dict[str, Any] | None:
    """How the module at `path` is quantized.

    Args:
        path: canonical module path, e.g. `model.layers.0.mlp.up_proj`.
        quantization: what `quantization_of` gave.
        weights: the checkpoint's tensors under canonical names.
        in_dims: the module's input width, where known. A module without an entry of its own is then read from
            its shapes, because converters write the global values beside modules of other widths.

    Returns:
        {"group_size", "bits", "mode"}, or None where the module has no scales: it is not quantized.

    Raises:
        UserError: the config and the tensors contradict each other.
    """
    scales = weights.get(f"{path}.scales")
    if scales is None:
        return None
    if quantization is None:
        raise _contradiction(path, "its scales are in the file, config.json has no quantization block")
    if f"{path}.weight" not in weights:
        raise _contradiction(path, "scales without a weight")
    packed, groups = weights[f"{path}.weight"].shape[-1], scales.shape[-1]
    parameters = quantization["modules"].get(path, _global(quantization))
    if parameters is None:
        raise _contradiction(path, "its scales are in the file, config.json says it is not quantized")
    if in_dims is not None and path not in quantization["modules"]:
        parameters = parameters_of({**parameters, **_widths(path, packed, groups, in_dims)}, path)
    _check(path, parameters, weights, in_dims)
    return parameters


def parameters_of(entry: dict[str, Any], path: str) -> dict[str, Any]:
    """The "group_size", "bits" and "mode" of a block or an entry; what is missing is MLX's default for the mode.

    Raises:
        UserError: MLX has no such quantization; names `path`.
    """
    mode = entry.get("mode", "affine")
    if mode not in _MODES:
        raise UserError(f"unknown quantization mode of {path}", given=mode, fix=f"MLX has {', '.join(_MODES)}")
    all_bits, group_sizes = _MODES[mode]
    bits, group_size = entry.get("bits") or all_bits[0], entry.get("group_size") or group_sizes[0]
    if bits not in all_bits or group_size not in group_sizes:
        raise UserError(
            f"MLX does not have this {mode} quantization of {path}",
            given=f"{bits} bits, group size {group_size}",
            fix=f"bits can be {_listed(all_bits)}, group size {_listed(group_sizes)}",
        )
    return {"group_size": group_size, "bits": bits, "mode": mode}


def _block(config: dict[str, Any]) -> dict[str, Any] | None:
    places = (config, config.get("text_config") or {})
    for name in _BLOCKS:
        for place in places:
            block = place.get(name)
            if not block:
                continue
            if not isinstance(block, dict):
                raise UserError(f"config.json's {name} must be an object", given=block)
            if name == "quantization_config" and block.get("quant_method"):
                raise UserError(
                    "the checkpoint is quantized in a format that MLX does not have",
                    given=block["quant_method"],
                    fix="use a bfloat16 checkpoint, or one from mlx-community",
                )
            return block
    return None


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, sorted(values)))


def _global(quantization: dict[str, Any]) -> dict[str, Any]:
    return {name: quantization[name] for name in ("group_size", "bits", "mode")}


def _widths(path: str, packed: int, groups: int, in_dims: int) -> dict[str, int]:
    """Bits and group size as the shapes have them."""
    if packed * 32 % in_dims or in_dims % groups:
        raise _contradiction(path, f"rows of {packed} words and {groups} scales cannot hold {in_dims} inputs")
    return {"bits": packed * 32 // in_dims, "group_size": in_dims // groups}


def _check(path: str, parameters: dict[str, Any], weights: dict[str, mx.array], in_dims: int | None) -> None:
    """Raises unless the tensors can have come from a quantization by `parameters`."""
    scales, packed = weights[f"{path}.scales"], weights[f"{path}.weight"].shape[-1]
    bits, group_size, mode = parameters["bits"], parameters["group_size"], parameters["mode"]
    inputs = scales.shape[-1] * group_size
    if packed * 32 != bits * inputs or in_dims not in (None, inputs):
        raise _contradiction(
            path,
            f"config.json says {bits} bits, group size {group_size}; "
            f"a row has {packed} words and {scales.shape[-1]} scales",
        )
    affine = scales.dtype != mx.uint8 and f"{path}.biases" in weights
    if affine != (mode == "affine"):
        raise _contradiction(path, f"config.json says mode {mode}; {'affine' if affine else 'no affine'} scales")


def _contradiction(path: str, given: str) -> UserError:
    return UserError(f"the quantization of {path} contradicts itself", given=given, fix="convert the checkpoint again")
