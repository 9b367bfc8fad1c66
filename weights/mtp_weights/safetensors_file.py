"""Checks a safetensors file before MLX maps it.

MLX reads tensors lazily: a file that is too short, or whose header lies, would fail in the middle of a
computation. The format is 8 bytes of little-endian header size, a JSON header, and the tensors without gaps.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtp_weights.errors import UserError

_ITEM_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2}
_ITEM_BYTES |= {"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8}
_MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own implementation
_MAX_DIMENSION = 2**31 - 1  # MLX shapes are int32
_LFS_POINTER = b"version https://git-lfs"
_AGAIN = "download the file again"


@dataclass(frozen=True)
class TensorInfo:
    """A tensor by its header: dtype in safetensors' words, shape, bytes [begin, end) after the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Reads and checks the header of a safetensors file; no tensor is read.

    Returns:
        Tensor name -> what the header says about it.

    Raises:
        UserError: not a safetensors file, or one that is empty, truncated or inconsistent, or that has a
            tensor of a dtype that MLX does not have.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(len(_LFS_POINTER))
            header_bytes = int.from_bytes(start[:8], "little")
            file.seek(8)
            # Another format has arbitrary bytes here: read no more than there can be.
            header = file.read(header_bytes) if header_bytes <= min(size - 8, _MAX_HEADER_BYTES) else None
    except OSError as error:
        raise UserError("cannot read a weight file", given=f"{path}: {error.strerror}") from error
    if size == 0:
        raise UserError("the weight file is empty", given=path, fix=_AGAIN)
    if start == _LFS_POINTER:
        raise UserError("a Git LFS pointer instead of the weights", given=path, fix="run `git lfs pull` there")
    if header is None:
        raise UserError("not a safetensors file, or a truncated one", given=path, fix=_AGAIN)
    tensors = _parse(header, path)
    _check_extent(tensors, size - 8 - header_bytes, path)
    return tensors


def _parse(header: bytes, path: Path) -> dict[str, TensorInfo]:
    try:
        entries = json.loads(header, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise UserError("not a safetensors file: its header is not JSON", given=path, fix=_AGAIN) from error
    if not isinstance(entries, dict):
        raise UserError("not a safetensors file: its header is not a JSON object", given=path, fix=_AGAIN)
    return {name: _tensor(name, entry, path) for name, entry in entries.items() if name != "__metadata__"}


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses a name that comes twice: which of the two a reader takes is up to the reader."""
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name comes twice")
    return entries


def _tensor(name: str, entry: Any, path: Path) -> TensorInfo:
    """One entry of the header, checked in itself."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise _corrupt(name, path) from error
    integers = all(type(value) is int for value in (*shape, begin, end))
    if not integers or not isinstance(dtype, str) or any(not 0 <= dim <= _MAX_DIMENSION for dim in shape):
        raise _corrupt(name, path)
    if dtype not in _ITEM_BYTES:
        raise UserError(
            f"tensor {name} has dtype {dtype}, which MLX does not have",
            given=path,
            fix="use a bfloat16 checkpoint, or one quantized by MLX",
        )
    if begin < 0 or end - begin != math.prod(shape) * _ITEM_BYTES[dtype]:
        raise _corrupt(name, path)
    return TensorInfo(dtype, shape, begin, end)


def _check_extent(tensors: dict[str, TensorInfo], data_bytes: int, path: Path) -> None:
    """The tensors must fill the data without gaps and overlaps, as the format demands."""
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != end:
            raise _corrupt(name, path)
        end = tensor.end
    if end > data_bytes:
        raise UserError("the weight file is truncated", given=f"{path}: {end - data_bytes} bytes missing", fix=_AGAIN)
    if end < data_bytes:
        raise UserError("the weight file is corrupt: bytes after its last tensor", given=path, fix=_AGAIN)


def _corrupt(name: str, path: Path) -> UserError:
    return UserError(f"the weight file is corrupt: its header contradicts itself at {name!r}", given=path, fix=_AGAIN)
