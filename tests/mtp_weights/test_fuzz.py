"""Damaged and hostile weight files: refused in one line, or read as what they were; no crash, no other numbers."""

import json
import random
from pathlib import Path

import mlx.core as mx
import pytest

from mtp_weights.check import check_checksums
from mtp_weights.errors import UserError
from mtp_weights.read import read_weights
from tests.mtp_weights.hub_server import checksum

CASES = 600
TENSORS = {
    "model.norm.weight": mx.arange(24, dtype=mx.float32),
    "model.embed_tokens.weight": mx.arange(96).reshape(12, 8).astype(mx.bfloat16),
    "masked_embedding.token_ordering": mx.arange(12, dtype=mx.int64),
    "flags": mx.array([True, False, True, True]),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> bytes:
    file = tmp_path_factory.mktemp("original") / "model.safetensors"
    mx.save_safetensors(str(file), TENSORS, metadata={"format": "mlx"})
    return file.read_bytes()


def header_of(data: bytes) -> int:
    """Where the tensors begin."""
    return 8 + int.from_bytes(data[:8], "little")


def damaged(data: bytes, rng: random.Random) -> bytes:
    """One of the things that happen to files, never in the numbers themselves: those only a checksum protects."""
    start = header_of(data)
    way = rng.choice(["cut", "flip", "flips", "insert", "delete", "zeros", "swap", "append"])
    at = rng.randrange(start)
    if way == "cut":
        return data[: rng.randrange(len(data))]
    if way in ("flip", "flips"):
        changed = bytearray(data)
        for _ in range(1 if way == "flip" else rng.randrange(2, 9)):
            changed[rng.randrange(start)] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if way == "insert":
        return data[:at] + rng.randbytes(rng.randrange(1, 9)) + data[at:]
    if way == "delete":
        return data[:at] + data[min(start, at + rng.randrange(1, 9)) :]
    if way == "zeros":
        end = min(start, at + rng.randrange(1, 65))
        return data[:at] + bytes(end - at) + data[end:]
    if way == "swap":
        other = rng.randrange(start)
        changed = bytearray(data)
        changed[at], changed[other] = changed[other], changed[at]
        return bytes(changed)
    return data + rng.randbytes(rng.randrange(1, 100))


def is_as_it_was(weights: dict[str, mx.array]) -> bool:
    """A name may have changed, which loading a model refuses; the numbers under a right name may not."""
    known = [name for name in weights if name in TENSORS]
    return all(
        weights[name].dtype == TENSORS[name].dtype and mx.array_equal(weights[name], TENSORS[name]).item()
        for name in known
    )


def test_damaged_files_are_refused_or_unharmed(original, tmp_path):
    rng, refused = random.Random(20261130), 0
    for case in range(CASES):
        data = damaged(original, rng)
        (tmp_path / "model.safetensors").write_bytes(data)
        try:
            assert is_as_it_was(read_weights(tmp_path)), (case, data[: header_of(original)])
        except UserError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > CASES * 0.9


def test_every_length_that_a_broken_download_can_leave(original, tmp_path):
    for length in range(len(original)):
        (tmp_path / "model.safetensors").write_bytes(original[:length])
        with pytest.raises(UserError, match="empty|not a safetensors file|truncated"):
            read_weights(tmp_path)


def tensor(begin: int, end: int, shape: list, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HOSTILE = {
    "a shape whose product overflows": {"a": tensor(0, 0, [2**31, 2**33])},
    "a shape that wraps around to the right size": {"a": tensor(0, 16, [2**62 + 1, 4])},
    "a negative dimension": {"a": tensor(0, 16, [-4, -1])},
    "a dimension that is no integer": {"a": tensor(0, 16, [4.0])},
    "a dimension that is a boolean": {"a": tensor(0, 4, [True])},
    "negative offsets": {"a": tensor(-16, 0, [4])},
    "offsets in the wrong order": {"a": tensor(16, 0, [4])},
    "offsets beyond the file": {"a": tensor(0, 16, [4]), "b": tensor(16, 2**40, [2**38 - 4])},
    "offsets of 10^30": {"a": tensor(10**30, 10**30 + 16, [4])},
    "overlapping tensors": {"a": tensor(0, 16, [4]), "b": tensor(0, 16, [4])},
    "a gap": {"a": tensor(0, 8, [2]), "b": tensor(12, 16, [1])},
    "a dtype that is none": {"a": tensor(0, 16, [4], "F33")},
    "a dtype that is a list": {"a": {"dtype": ["F32"], "shape": [4], "data_offsets": [0, 16]}},
    "an entry that is no object": {"a": [1, 2]},
    "no entry at all": {"a": None},
    "three offsets": {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8, 16]}},
}


@pytest.mark.parametrize("header", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_headers(header, tmp_path):
    write(tmp_path, json.dumps(header).encode())
    with pytest.raises(UserError):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "a": {"dtype": "F32", "shape": [4], '
        b'"data_offsets": [0, 16]}}',
        b'{"a": {"dtype": "F32", "dtype": "I32", "shape": [4], "data_offsets": [0, 16]}}',
        b"[" * 100_000,
        b'{"__metadata__": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
        b'{"a": NaN}',
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
        b"",
    ],
)
def test_headers_that_readers_understand_differently(header, tmp_path):
    write(tmp_path, header)
    with pytest.raises(UserError):
        read_weights(tmp_path)


def write(folder: Path, header: bytes, data: bytes = bytes(16)) -> None:
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)


def test_a_header_as_long_as_the_universe(tmp_path):
    for size in (2**63, 2**64 - 1, 10**12):
        (tmp_path / "model.safetensors").write_bytes(size.to_bytes(8, "little") + b"{}" + bytes(100))
        with pytest.raises(UserError, match="not a safetensors file, or a truncated one"):
            read_weights(tmp_path)


def test_any_flipped_bit_of_a_download_is_noticed(original, tmp_path):
    blob = tmp_path / "models--a--b" / "blobs" / checksum("model.safetensors", original)
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0"
    for folder in (blob.parent, snapshot):
        folder.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(blob)
    blob.write_bytes(original)
    assert check_checksums(snapshot) == 1
    rng = random.Random(1)
    for _ in range(100):
        changed = bytearray(original)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        blob.write_bytes(changed)
        with pytest.raises(UserError, match="not the file that was downloaded"):
            check_checksums(snapshot)
