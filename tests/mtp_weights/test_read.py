"""Reading checkpoint folders: one file or shards, and one clear line for whatever is wrong with them."""

import json
from pathlib import Path

import mlx.core as mx
import pytest

from mtp_weights.errors import UserError
from mtp_weights.read import read_config, read_generation_config, read_weights, stop_ids


def save(folder: Path, name: str, **weights: mx.array) -> None:
    mx.save_safetensors(str(folder / name), weights)


def index(folder: Path, **weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_reads_one_file(tmp_path):
    save(tmp_path, "model.safetensors", a=mx.arange(3), b=mx.ones((2, 2)))
    weights = read_weights(tmp_path)
    assert weights["a"].tolist() == [0, 1, 2] and weights["b"].shape == (2, 2)


def test_reads_shards_by_their_index(tmp_path):
    save(tmp_path, "first.safetensors", a=mx.arange(3), b=mx.zeros(2))
    save(tmp_path, "second.safetensors", b=mx.ones(2))
    save(tmp_path, "adapters.safetensors", a=mx.zeros(3))
    index(tmp_path, a="first.safetensors", b="second.safetensors")
    weights = read_weights(tmp_path)
    assert {name: array.tolist() for name, array in weights.items()} == {"a": [0, 1, 2], "b": [1, 1]}


def test_reads_shards_without_an_index(tmp_path):
    save(tmp_path, "model-00001-of-00002.safetensors", a=mx.arange(3))
    save(tmp_path, "model-00002-of-00002.safetensors", b=mx.ones(2))
    assert read_weights(tmp_path).keys() == {"a", "b"}


def test_one_whole_file_wins_over_a_stale_index(tmp_path):
    save(tmp_path, "model.safetensors", a=mx.arange(3))
    index(tmp_path, a="model-00001-of-00002.safetensors", b="model-00002-of-00002.safetensors")
    assert read_weights(tmp_path).keys() == {"a"}


@pytest.mark.parametrize("indexed", [True, False])
def test_a_missing_shard_is_named(tmp_path, indexed):
    names = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    save(tmp_path, names[0], a=mx.arange(3))
    save(tmp_path, names[2], c=mx.arange(3))
    if indexed:
        index(tmp_path, a=names[0], b=names[1], c=names[2])
    with pytest.raises(UserError, match="1 of 3 weight files are missing: model-00002-of-00003.safetensors"):
        read_weights(tmp_path)


def test_a_broken_link_is_a_missing_shard(tmp_path):
    (tmp_path / "part.safetensors").symlink_to(tmp_path / "blob")
    index(tmp_path, a="part.safetensors")
    with pytest.raises(UserError, match="missing: part.safetensors"):
        read_weights(tmp_path)


def test_a_shard_without_its_tensor_is_named(tmp_path):
    save(tmp_path, "part.safetensors", a=mx.arange(3))
    index(tmp_path, a="part.safetensors", b="part.safetensors")
    with pytest.raises(UserError, match="part.safetensors lacks 1 tensors .* first b"):
        read_weights(tmp_path)


@pytest.mark.parametrize("name", ["../part.safetensors", "/part.safetensors", "part.bin", 3, None])
def test_an_index_cannot_reach_outside_its_folder(tmp_path, name):
    index(tmp_path, a=name)
    with pytest.raises(UserError, match="cannot be a shard"):
        read_weights(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_an_index_that_is_none(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(UserError, match="model.safetensors.index.json"):
        read_weights(tmp_path)


def test_no_weights_at_all(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"x")
    with pytest.raises(UserError, match="no weights: .*model.safetensors"):
        read_weights(tmp_path)


def test_a_file_without_tensors(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    with pytest.raises(UserError, match="no tensors"):
        read_weights(tmp_path)


def test_a_truncated_file_is_refused_before_it_is_mapped(tmp_path):
    save(tmp_path, "model.safetensors", a=mx.zeros((64, 64)))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match="truncated .*model.safetensors: 1 bytes missing"):
        read_weights(tmp_path)


@pytest.mark.parametrize("metadata", ['{"a": 1}', "[1]", '{"a": NaN}'])
def test_what_only_mlx_minds_is_one_line_too(tmp_path, metadata):
    header = b'{"__metadata__": %s, "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}' % metadata.encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(UserError, match="MLX cannot read the weight file"):
        read_weights(tmp_path)


def test_reads_configs(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gemma4"}')
    assert read_config(tmp_path) == {"model_type": "gemma4"}
    assert read_generation_config(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text('{"top_k": 64}')
    assert read_generation_config(tmp_path) == {"top_k": 64}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "config.json is not valid JSON"),
        (b'{"a": ', "config.json is not valid JSON"),
        (b"\xff\xfe\xfa", "config.json is not valid JSON"),
        (b"[" * 100_000, "config.json is not valid JSON"),
        (b"[1]", "must hold a JSON object .*list"),
        (b"null", "must hold a JSON object .*NoneType"),
    ],
)
def test_a_config_that_is_none(tmp_path, content, message):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_config(tmp_path)


def test_no_folder_and_no_config(tmp_path):
    with pytest.raises(UserError, match="no such checkpoint folder"):
        read_config(tmp_path / "none")
    with pytest.raises(UserError, match="needs a config.json"):
        read_config(tmp_path)


def test_stop_ids_are_the_union():
    config = {"eos_token_id": [1, 106], "text_config": {"eos_token_id": 1}}
    assert stop_ids(config, {"eos_token_id": [1, 106, 50]}) == {1, 50, 106}
    assert stop_ids({"eos_token_id": 1, "text_config": None}, {}) == {1}
    assert stop_ids({"text_config": {"eos_token_id": 7}}, {"eos_token_id": None}) == {7}
    assert stop_ids({}, {}) == set()


@pytest.mark.parametrize("value", ["<eos>", [1, "x"], True, -1, 1.0])
def test_stop_ids_must_be_ids(value):
    with pytest.raises(UserError, match="eos_token_id"):
        stop_ids({}, {"eos_token_id": value})
