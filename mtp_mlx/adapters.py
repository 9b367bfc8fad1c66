"""LoRA adapters of mlx-lm, put on a target. A drafter takes none: its drafts are verified whatever they are."""

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers

from mtp_mlx.errors import UserError
from mtp_mlx.models.target import Target
from mtp_weights.json_file import read_object
from mtp_weights.layout import canonical
from mtp_weights.links import check_links
from mtp_weights.safetensors_file import read_header

_CONFIG, _WEIGHTS = "adapter_config.json", "adapters.safetensors"
_LEAVES = {"lora_a", "lora_b", "m"}  # "m" is DoRA's magnitude


def load_adapters(model: Target, folder: Path) -> None:
    """Puts the adapters in `folder` on `model`, as `mlx_lm.lora` wrote them.

    Raises:
        UserError: no adapters of mlx-lm, or they do not fit this model; which is then not to be used.
    """
    for name in (_CONFIG, _WEIGHTS):
        if not (folder / name).exists():
            fix = "name the folder that mlx_lm.lora wrote (--adapter-path)"
            raise UserError(f"no {name} in the adapter folder", given=folder, fix=fix)
    check_links(folder)
    config = read_object(folder / _CONFIG)
    read_header(folder / _WEIGHTS)
    weights = {canonical(name): array for name, array in mx.load(str(folder / _WEIGHTS)).items()}
    if config.get("fine_tune_type", "lora") != "full":
        _add_layers(model, config, folder)
    _check(model, weights, config, folder)
    dtype = model.model.norm.weight.dtype
    model.load_weights([(name, array.astype(dtype)) for name, array in weights.items()], strict=False)
    model.eval()
    mx.eval(model.parameters())


def _add_layers(model: Target, config: dict[str, Any], folder: Path) -> None:
    try:
        parameters = {"dropout": 0.0, **config["lora_parameters"]}
        is_dora = config.get("fine_tune_type") == "dora"
        linear_to_lora_layers(model, config["num_layers"], parameters, use_dora=is_dora)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{_CONFIG} does not describe adapters of mlx-lm", given=f"{folder}: {error}") from error


def _check(model: Target, weights: dict[str, mx.array], config: dict[str, Any], folder: Path) -> None:
    """Every tensor must have its place in the model, and every new layer its tensors."""
    own = tree_flatten(model.parameters(), destination={})
    added = {name for name in own if name.rsplit(".", 1)[-1] in _LEAVES}
    wrong = sorted(name for name, array in weights.items() if name not in own or own[name].shape != array.shape)
    wrong += sorted(added - weights.keys())
    if wrong:
        raise UserError(
            f"the adapters do not fit the model: {len(wrong)} tensors have no place in it or are missing",
            given=f"{folder}: {wrong[0]}",
            fix="use the model they were trained on",
        )
