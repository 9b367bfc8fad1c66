"""Reads a checkpoint folder: its configurations, and its weights, lazily mapped."""

import os
from pathlib import Path
from typing import Any

import mlx.core as mx

from mtp_weights.errors import UserError
from mtp_weights.json_file import read_object
from mtp_weights.safetensors_file import read_header
from mtp_weights.shards import weight_files


def read_config(path: Path) -> dict[str, Any]:
    """Reads config.json of the checkpoint folder `path`.

    Raises:
        UserError: no such folder, no config.json, or no JSON object in it.
    """
    if not os.path.isdir(path):
        raise UserError("no such checkpoint folder", given=path, fix="check the path")
    if not os.path.exists(path / "config.json"):
        raise UserError("a checkpoint folder needs a config.json", given=path, fix="check the path")
    return read_object(path / "config.json")


def read_generation_config(path: Path) -> dict[str, Any]:
    """Reads generation_config.json of the checkpoint folder `path`; {} where it has none.

    Raises:
        UserError: the file is there, but holds no JSON object.
    """
    file = path / "generation_config.json"
    return read_object(file) if os.path.exists(file) else {}


def read_weights(path: Path) -> dict[str, mx.array]:
    """Maps the weights of the checkpoint folder `path`, from one file or from shards. Nothing is evaluated.

    Returns:
        Tensor name, as the checkpoint has it -> array.

    Raises:
        UserError: no weights, a missing shard or tensor, or a file that is empty, truncated or corrupt.
    """
    weights: dict[str, mx.array] = {}
    files = weight_files(path)
    owner = {tensor: name for name, tensors in files.items() for tensor in tensors}
    for name, expected in files.items():
        tensors = _map(path / name)
        lost = sorted(expected - tensors.keys())
        if lost:
            raise UserError(
                f"{name} lacks {len(lost)} tensors that the index expects, first {lost[0]}",
                given=path,
                fix="download the checkpoint again",
            )
        weights |= {tensor: array for tensor, array in tensors.items() if owner.get(tensor, name) == name}
    if not weights:
        raise UserError("the weight files hold no tensors", given=path, fix="download the checkpoint again")
    return weights


def _map(file: Path) -> dict[str, mx.array]:
    read_header(file)
    try:
        return mx.load(str(file))
    except RuntimeError as error:  # whatever MLX's parser minds beyond our checks
        raise UserError("MLX cannot read the weight file", given=f"{file}: {error}", fix="download it again") from error


def stop_ids(config: dict[str, Any], generation_config: dict[str, Any]) -> set[int]:
    """The token ids that end a reply: the union of `eos_token_id` in config.json, its text_config, and
    generation_config.json (Gemma 4's files disagree: [1, 106] and [1, 106, 50]).

    Raises:
        UserError: an `eos_token_id` that is neither an id nor a list of ids.
    """
    sources = (config, config.get("text_config") or {}, generation_config)
    return {token for source in sources for token in _ids(source.get("eos_token_id"))}


def _ids(value: Any) -> list[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(token) is not int or token < 0 for token in ids):
        raise UserError("eos_token_id must be a token id or a list of token ids", given=value, fix="mend the config")
    return ids
