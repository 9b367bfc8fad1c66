"""A damaged weight file is refused with one clear line before MLX maps it."""

import json
from pathlib import Path

import mlx.core as mx
import pytest

from mtp_weights.errors import UserError
from mtp_weights.safetensors_file import TensorInfo, read_header


def write(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(shape=(4,), offsets=(0, 16), dtype="F32") -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_reads_what_mlx_writes(file):
    mx.save_safetensors(str(file), {"a": mx.zeros((2, 3)), "b": mx.zeros((5,), mx.bfloat16)}, {"format": "mlx"})
    header = read_header(file)
    assert header["a"] == TensorInfo("F32", (2, 3), header["a"].begin, header["a"].begin + 24)
    assert header["b"].dtype == "BF16" and header["b"].shape == (5,)
    assert header.keys() == {"a", "b"}


@pytest.mark.parametrize("dtype", [mx.bool_, mx.uint8, mx.int32, mx.int64, mx.float16, mx.float32, mx.uint32])
def test_accepts_every_dtype_that_checkpoints_use(file, dtype):
    mx.save_safetensors(str(file), {"a": mx.zeros((3, 0, 2), dtype), "b": mx.zeros((), dtype)})
    assert read_header(file)["a"].shape == (3, 0, 2)


def test_every_truncation_is_refused(file):
    mx.save_safetensors(str(file), {"a": mx.arange(6), "b": mx.ones((3, 4))})
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(UserError, match="model.safetensors"):
            read_header(file)


def test_says_how_much_is_missing(file):
    write(file, {"a": entry()}, bytes(9))
    with pytest.raises(UserError, match="truncated .*7 bytes missing"):
        read_header(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"GGUF\x03\x00\x00\x00" + bytes(64), "not a safetensors file"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + bytes(64), "not a safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
        (bytes(8), "not JSON"),
        (b"\x04" + bytes(7) + b"[1]\n", "not a JSON object"),
    ],
)
def test_other_files_are_named_for_what_they_are(file, content, message):
    file.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_header(file)


@pytest.mark.parametrize(
    "header",
    [
        {"a": 1},
        {"a": {}},
        {"a": entry(offsets=(0, 16, 32))},
        {"a": entry(shape=(-4,))},
        {"a": entry(shape=(4.0,))},
        {"a": entry(shape=(True, 4))},
        {"a": entry(shape=(5,))},
        {"a": entry(offsets=(16, 0))},
        {"a": entry(offsets=(-16, 0))},
        {"a": entry(shape=(0, 2**33), offsets=(0, 0))},
        {"a": entry(offsets=("0", "16"))},
        {"a": entry(dtype=7)},
        {"a": entry(shape=(1,), offsets=(12, 16))},
        {"a": entry(), "b": entry()},
    ],
)
def test_contradictions_in_the_header_are_refused(file, header):
    write(file, header, bytes(16))
    with pytest.raises(UserError, match="corrupt.*'[ab]'"):
        read_header(file)


def test_bytes_after_the_last_tensor_are_refused(file):
    write(file, {"a": entry()}, bytes(17))
    with pytest.raises(UserError, match="after its last tensor"):
        read_header(file)


def test_float8_is_not_mistaken_for_bytes(file):
    write(file, {"a": entry(dtype="F8_E4M3", offsets=(0, 4))}, bytes(4))
    with pytest.raises(UserError, match="a has dtype F8_E4M3.*bfloat16"):
        read_header(file)


def test_a_missing_file_and_a_folder_are_one_line_each(tmp_path):
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(UserError, match="cannot read a weight file"):
            read_header(path)
