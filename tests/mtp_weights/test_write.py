"""Writing checkpoints: they come back as they were, and a failure leaves what was there."""

import json
from pathlib import Path

import mlx.core as mx
import pytest

from mtp_weights import write as write_module
from mtp_weights.errors import UserError
from mtp_weights.read import read_config, read_generation_config, read_weights
from mtp_weights.write import write_checkpoint

CONFIG = {"model_type": "gemma4_text", "note": "ß"}


def weights(value: float = 1.0) -> dict[str, mx.array]:
    return {f"model.layers.{index}.weight": mx.full((4, 8), value + index) for index in range(5)}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def same(left: dict[str, mx.array], right: dict[str, mx.array]) -> bool:
    return left.keys() == right.keys() and all(mx.array_equal(left[name], right[name]) for name in left)


def test_round_trip_in_one_file(tmp_path):
    folder = tmp_path / "deep" / "checkpoint"
    mixed = {**weights(), "half": mx.ones(3, mx.bfloat16), "view": mx.arange(6, dtype=mx.int32).reshape(2, 3).T}
    source = tmp_path / "tokenizer.json"
    source.write_text("{}")
    extras = {"generation_config.json": b'{"top_k": 64}', "tokenizer.json": source}
    write_checkpoint(folder, mixed, CONFIG, extras)
    assert names(folder) == {"config.json", "model.safetensors", "generation_config.json", "tokenizer.json"}
    assert same(read_weights(folder), mixed)
    assert read_weights(folder)["half"].dtype == mx.bfloat16
    assert read_config(folder) == CONFIG and read_generation_config(folder) == {"top_k": 64}


def test_round_trip_in_shards(tmp_path):
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, weights(), CONFIG, shard_bytes=300)  # two tensors of 128 bytes each
    shards = {f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)}
    assert names(folder) == {"config.json", "model.safetensors.index.json", *shards}
    assert same(read_weights(folder), weights())
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 5 * 128
    assert index["weight_map"]["model.layers.4.weight"] == "model-00003-of-00003.safetensors"


def test_a_tensor_larger_than_a_shard_gets_its_own(tmp_path):
    write_checkpoint(tmp_path / "checkpoint", weights(), CONFIG, shard_bytes=1)
    assert same(read_weights(tmp_path / "checkpoint"), weights())


def test_a_checkpoint_is_replaced_only_when_asked(tmp_path):
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, weights(1), CONFIG, {"README.md": b"old"}, shard_bytes=1)
    with pytest.raises(UserError, match="has a checkpoint"):
        write_checkpoint(folder, weights(2), CONFIG)
    write_checkpoint(folder, weights(2), CONFIG, replace=True)
    assert names(folder) == {"config.json", "model.safetensors"}
    assert same(read_weights(folder), weights(2))
    assert names(tmp_path) == {"checkpoint"}


def test_a_checkpoint_can_be_rewritten_from_its_own_mapped_files(tmp_path):
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, weights(), CONFIG)
    doubled = {name: array * 2 for name, array in read_weights(folder).items()}
    write_checkpoint(folder, doubled, CONFIG, replace=True)
    assert same(read_weights(folder), {name: array * 2 for name, array in weights().items()})


@pytest.mark.parametrize("replace", [True, False])
def test_what_is_no_checkpoint_is_never_replaced(tmp_path, replace):
    (tmp_path / "thesis.txt").write_text("precious")
    for folder in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(UserError, match="must be new or empty"):
            write_checkpoint(folder, weights(), CONFIG, replace=replace)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_an_empty_folder_is_fine(tmp_path):
    write_checkpoint(tmp_path, weights(), CONFIG)
    assert same(read_weights(tmp_path), weights())


def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch):
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, weights(1), CONFIG)

    def fail(file: Path, weights: dict[str, mx.array]) -> None:
        file.write_bytes(b"half")
        raise RuntimeError("[write] Unable to write 9 bytes to file.")

    monkeypatch.setattr(write_module, "_save", fail)
    with pytest.raises(UserError, match="cannot write the checkpoint .*free space"):
        write_checkpoint(folder, weights(2), CONFIG, replace=True)
    with pytest.raises(UserError, match="cannot write the checkpoint"):
        write_checkpoint(tmp_path / "other", weights(2), CONFIG)
    assert names(tmp_path) == {"checkpoint"}
    assert same(read_weights(folder), weights(1))


def test_a_failed_move_puts_the_old_checkpoint_back(tmp_path, monkeypatch):
    folder = tmp_path / "checkpoint"
    write_checkpoint(folder, weights(1), CONFIG)
    rename = Path.rename

    def fail_for_new(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_new)
    with pytest.raises(UserError, match="cannot write the checkpoint"):
        write_checkpoint(folder, weights(2), CONFIG, replace=True)
    assert same(read_weights(folder), weights(1))


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot write the checkpoint"):
        write_checkpoint(tmp_path / "file" / "checkpoint", weights(), CONFIG)
