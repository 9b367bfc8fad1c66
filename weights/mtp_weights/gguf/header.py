"""Reads and checks what stands before the tensors of a GGUF file.

MLX's own reader trusts the file: what is cut off or lies about its sizes would end the process. The format is that of
ggml's documentation (docs/gguf.md), versions 2 and 3: magic, version, counts, metadata, tensor descriptions, and after
padding the tensors.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mtp_weights.errors import UserError

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_LFS_POINTER = b"version https://git-lfs"
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 4  # ggml's
_MAX_DIMENSION = 2**31 - 1  # MLX shapes are int32
# Tensor types that MLX reads as the gguf package does, by ggml's numbers: name, numbers in a block, bytes of a block.
# MLX takes Q4_K too, but of random blocks half come out otherwise (docs/log.md, 2026-11-30).
_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    8: ("Q8_0", 32, 34),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
_READABLE = ", ".join(name for name, _, _ in _TYPES.values())
_AGAIN = "download the file again"


@dataclass(frozen=True)
class Header:
    """What a file says of itself.

    Attributes:
        metadata: key -> number, bool, text, or list of them.
        shapes: tensor name -> shape, the last axis varying fastest.
    """

    metadata: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]


def read_header(path: Path) -> Header:
    """Reads the header and checks that every tensor lies within the file.

    Raises:
        UserError: no GGUF file, a damaged one, or one with tensors of a type that MLX does not read.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size == 0:
                raise UserError("the GGUF file is empty", given=path, fix=_AGAIN)
            if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise UserError("a Git LFS pointer instead of the weights", given=path, fix="run `git lfs pull` there")
            file.seek(0)
            return _Reader(file, size, path).header()
    except OSError as error:
        raise UserError("cannot read the GGUF file", given=f"{path}: {error.strerror}") from error


class _Reader:
    def __init__(self, file: BinaryIO, size: int, path: Path):
        self.file, self.size, self.path = file, size, path

    def header(self) -> Header:
        if self.take(4) != _MAGIC:
            raise UserError("not a GGUF file", given=self.path, fix="name a .gguf file")
        version = self.scalar("<I")
        if version not in _VERSIONS:
            raise UserError("this version of GGUF is not known", given=f"{self.path}: {version}", fix="convert it anew")
        tensors, pairs = self.scalar("<Q"), self.scalar("<Q")
        metadata = dict(self.pair() for _ in range(self.count(pairs)))
        infos = [self.tensor() for _ in range(self.count(tensors))]
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1:
            raise self.damaged("its alignment is no positive number")
        start = -(-self.file.tell() // alignment) * alignment
        for name, _, offset, nbytes in infos:
            if start + offset + nbytes > self.size:
                raise self.damaged(f"it ends within the tensor {name}")
        shapes = {name: shape for name, shape, _, _ in infos}
        if len(shapes) < len(infos):
            raise self.damaged("two tensors have the same name")
        return Header(metadata, shapes)

    def pair(self) -> tuple[str, Any]:
        return self.text(), self.value(self.scalar("<I"))

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind != _ARRAY:
            raise self.damaged(f"metadata of the unknown type {kind}")
        inner, count = self.scalar("<I"), self.count(self.scalar("<Q"))
        if inner in _SCALARS:
            form = _SCALARS[inner][1]
            return list(struct.unpack(f"<{count}{form}", self.take(count * struct.calcsize(_SCALARS[inner]))))
        return [self.value(inner) for _ in range(count)]

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, offset from where the tensors begin, and number of bytes."""
        name, dimensions = self.text(), self.scalar("<I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise self.damaged(f"{name} has {dimensions} dimensions")
        shape = tuple(self.scalar("<Q") for _ in range(dimensions))
        kind, offset = self.scalar("<I"), self.scalar("<Q")
        if kind not in _TYPES:
            given = f"{self.path}: {name} has ggml's type {kind}"
            fix = f"use a file with {_READABLE} only (often named …-Q8_0.gguf or …-f16.gguf)"
            raise UserError("the GGUF file has a tensor of a type that MLX does not read", given=given, fix=fix)
        _, numbers, nbytes = _TYPES[kind]
        if not all(1 <= length <= _MAX_DIMENSION for length in shape) or shape[0] % numbers:
            raise self.damaged(f"{name} has the shape {shape}")
        return name, shape[::-1], offset, math.prod(shape) // numbers * nbytes

    def text(self) -> str:
        try:
            return self.take(self.count(self.scalar("<Q"))).decode()
        except UnicodeDecodeError as error:
            raise self.damaged("a text in it is not UTF-8") from error

    def scalar(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def count(self, count: int) -> int:
        """A number of things that take a byte each at least: more than the file has would take all memory."""
        if count > self.size:
            raise self.damaged(f"it speaks of {count} things")
        return count

    def take(self, count: int) -> bytes:
        data = self.file.read(count)
        if len(data) < count:
            raise self.damaged("it ends too early")
        return data

    def damaged(self, what: str) -> UserError:
        return UserError("the GGUF file is damaged", given=f"{self.path}: {what}", fix=_AGAIN)
