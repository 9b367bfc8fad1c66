"""Which files hold a checkpoint's weights: one file, or shards with or without an index."""

import os
import re
from pathlib import Path

from mtp_weights.errors import UserError
from mtp_weights.json_file import read_object
from mtp_weights.layout import is_tower

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLES = {".bin", ".pt", ".pth", ".pkl", ".ckpt"}
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")


def weight_files(folder: Path) -> dict[str, set[str]]:
    """The weight files of a checkpoint.

    Shards of nothing but image and audio towers are not among them, and need not be there.

    Returns:
        File name -> the tensors that the index expects in it (none where there is no index).

    Raises:
        UserError: no weights, a missing shard, or an index that is none.
    """
    if os.path.exists(folder / SINGLE):
        return {SINGLE: set()}
    files = _indexed(folder) if os.path.exists(folder / INDEX) else _unindexed(folder)
    missing = sorted(name for name in files if not os.path.exists(folder / name))
    if missing:
        raise UserError(
            f"{len(missing)} of {len(files)} weight files are missing: {', '.join(missing[:3])}"
            + (", …" if len(missing) > 3 else ""),
            given=folder,
            fix="download the checkpoint again",
        )
    if not files:
        raise _no_weights(folder)
    return files


def tower_files(index: Path) -> set[str]:
    """The shards that hold nothing but image and audio towers, by an index file."""
    files = _by_file(index)
    return {name for name, tensors in files.items() if all(map(is_tower, tensors))}


def _indexed(folder: Path) -> dict[str, set[str]]:
    files, towers = _by_file(folder / INDEX), tower_files(folder / INDEX)
    return {name: tensors for name, tensors in files.items() if name not in towers}


def _by_file(index: Path) -> dict[str, set[str]]:
    """The index the other way round: file name -> its tensors."""
    folder = index.parent
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{INDEX} lacks its weight_map", given=folder, fix="download the file again")
    files: dict[str, set[str]] = {}
    for tensor, name in weight_map.items():
        # A plain name: an index must not reach outside its folder.
        if not isinstance(name, str) or not name.endswith(".safetensors") or Path(name).name != name:
            raise UserError(f"{INDEX} names a file that cannot be a shard", given=f"{folder}: {name!r}")
        files.setdefault(name, set()).add(tensor)
    return files


def _unindexed(folder: Path) -> dict[str, set[str]]:
    """Every model*.safetensors, and the shards that their names promise."""
    names = {path.name for path in folder.glob("model*.safetensors")}
    for match in filter(None, map(_SHARD.fullmatch, sorted(names))):
        stem, count = match["stem"], match["count"]
        names |= {f"{stem}-{number:05}-of-{count}.safetensors" for number in range(1, int(count) + 1)}
    return {name: set() for name in sorted(names)}


def _no_weights(folder: Path) -> UserError:
    """Says so, and names weights of formats that are never opened: a pickle can run any code."""
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if pickles:
        return UserError(
            "the weights are in a pickle file, which can run any code and is never opened",
            given=folder / pickles[0],
            fix="use a checkpoint in safetensors format",
        )
    return UserError(
        "no weights: a checkpoint has model.safetensors, or shards and their index",
        given=folder,
        fix="check the path, or convert the checkpoint to safetensors",
    )
