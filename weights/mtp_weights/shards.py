"""Which files hold a checkpoint's weights: one file, or shards with or without an index."""

import os
import re
from pathlib import Path

from mtp_weights.errors import UserError
from mtp_weights.json_file import read_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")


def weight_files(folder: Path) -> dict[str, set[str]]:
    """The weight files of a checkpoint.

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
        raise UserError(
            "no weights: a checkpoint has model.safetensors, or shards and their index",
            given=folder,
            fix="check the path, or convert the checkpoint to safetensors",
        )
    return files


def _indexed(folder: Path) -> dict[str, set[str]]:
    weight_map = read_object(folder / INDEX).get("weight_map")
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
