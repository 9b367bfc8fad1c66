"""A wrong pair is refused before weights are read, in one line that names the right drafter.

The drafters' folders here have no weights: whatever is refused for another reason was refused before reading them, and
a right pair is one that gets as far as missing them.
"""

import importlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mtp_mlx import load_drafter, load_model
from mtp_mlx.errors import UserError
from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_config import TextConfig
from tests.reference.cases import real_config
from tests.tiny import build_target, drafter_config, target_config, write_drafter, write_target
from tests.tiny_tokenizer import write_tokenizer

OFFICIAL = {
    "gemma-4-e2b": "google/gemma-4-E2B-it-assistant",
    "gemma-4-e4b": "google/gemma-4-E4B-it-assistant",
    "gemma-4-26b-a4b": "google/gemma-4-26B-A4B-it-assistant",
    "gemma-4-31b": "google/gemma-4-31B-it-assistant",
}
NO_WEIGHTS = "no weights: a checkpoint has model.safetensors"


@cache
def real_target(name: str) -> Gemma4:
    """Never evaluated, so it takes no memory."""
    return Gemma4(TextConfig.from_dict(real_config(name)))


def folder_with(config: dict[str, Any], folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def refusal(model: Gemma4, drafter: Path) -> str:
    with pytest.raises(UserError) as error:
        load_drafter(drafter, model)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("target", OFFICIAL)
@pytest.mark.parametrize("drafter", OFFICIAL)
def test_real_pairs(target, drafter, tmp_path):
    message = refusal(real_target(target), folder_with(real_config(f"{drafter}-assistant"), tmp_path))
    if target == drafter:
        assert NO_WEIGHTS in message
    else:
        assert message.startswith("wrong pair: the target has hidden size")
        assert f"use {OFFICIAL[target]}" in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 131_072}, "vocabulary size 262144, the drafter was trained for 131072"),
        ({"sliding_window": 1024}, "sliding window 512, the drafter was trained for 1024"),
        ({"head_dim": 128}, "head dimension in sliding attention 256, the drafter was trained for 128"),
        ({"global_head_dim": 256}, "head dimension in full attention 512, the drafter was trained for 256"),
        ({"num_key_value_heads": 2}, "key-value heads in sliding attention 1, the drafter was trained for 2"),
        (
            {"num_global_key_value_heads": 4, "attention_k_eq_v": True},
            "key-value heads in full attention 1, the drafter was trained for 4",
        ),
    ],
)
def test_drafter_that_cannot_read_the_targets_keys_and_values(changes, message, tmp_path):
    config = real_config("gemma-4-e2b-assistant")
    config["text_config"] |= changes
    answer = refusal(real_target("gemma-4-e2b"), folder_with(config, tmp_path))
    assert f"wrong pair: the target has {message}" in answer
    assert "use google/gemma-4-E2B-it-assistant" in answer


def test_unofficial_target_is_told_what_to_look_for(tmp_path):
    answer = refusal(build_target(target_config("e2b")), folder_with(real_config("gemma-4-e2b-assistant"), tmp_path))
    assert answer == (
        "wrong pair: the target has hidden size 64, the drafter was trained for 1536; "
        "use the drafter that was trained on this target"
    )


def test_sliding_layers_that_the_target_has_not(tmp_path):
    config = drafter_config(target_config("llama-sliding"), clustered=True)
    answer = refusal(build_target(target_config("llama")), folder_with(config, tmp_path))
    assert answer == (
        "wrong pair: the target has attention layers of full_attention, the drafter was trained for "
        "full_attention and sliding_attention; use the drafter that was trained on this target"
    )


@pytest.mark.parametrize("dialect", ["gemma4_text", "gemma4"])
def test_target_given_as_drafter(dialect, tmp_path):
    config = target_config("e2b", model_type=dialect)
    answer = refusal(build_target(target_config("e2b")), folder_with(config, tmp_path))
    assert "not a drafter" in answer
    assert "this is a target" in answer


def test_drafter_given_as_target(tmp_path):
    write_drafter(tmp_path / "drafter", drafter_config(target_config("e2b"), clustered=True))
    with pytest.raises(UserError, match="not a target.*this is a drafter"):
        load_model(tmp_path / "drafter")


def test_clusters_that_do_not_divide_the_vocabulary(tmp_path):
    config = drafter_config(target_config("e2b"), clustered=True) | {"num_centroids": 24}
    answer = refusal(build_target(target_config("e2b")), folder_with(config, tmp_path))
    assert "vocab_size 128, num_centroids 24" in answer


class TestTokenizers:
    @pytest.fixture
    def target(self, tmp_path) -> Gemma4:
        config = target_config("e2b", vocab_size=384, vocab_size_per_layer_input=384)
        model, _ = load_model(write_tokenizer(write_target(tmp_path / "target", config)))
        return model

    @pytest.fixture
    def drafter(self, tmp_path) -> Path:
        config = target_config("e2b", vocab_size=384, vocab_size_per_layer_input=384)
        (tmp_path / "drafter").mkdir()
        return write_tokenizer(folder_with(drafter_config(config, clustered=True), tmp_path / "drafter"))

    def test_same(self, target, drafter):
        assert NO_WEIGHTS in refusal(target, drafter)

    def test_drafter_without_one(self, target, drafter):
        (drafter / "tokenizer.json").unlink()
        assert NO_WEIGHTS in refusal(target, drafter)

    def test_same_ids_in_another_file(self, target, drafter):
        path = drafter / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"truncation": None}, indent=2))
        assert NO_WEIGHTS in refusal(target, drafter)

    def test_other_ids(self, target, drafter):
        path = drafter / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
        path.write_text(json.dumps(tokenizer))
        assert "wrong pair: target and drafter have different tokenizers" in refusal(target, drafter)

    def test_damaged(self, target, drafter):
        (drafter / "tokenizer.json").write_text('{"model": ')
        assert "tokenizer.json is not valid JSON" in refusal(target, drafter)


class TestAuto:
    def test_names_the_official_drafter_of_the_hidden_size(self, monkeypatch, tmp_path):
        asked = []
        module = importlib.import_module("mtp_mlx.load")  # the package's attribute of this name is the function
        monkeypatch.setattr(module, "resolve", lambda name: asked.append(name) or tmp_path)
        for target in OFFICIAL:
            folder_with(real_config(f"{target}-assistant"), tmp_path)
            with pytest.raises(UserError, match=NO_WEIGHTS):
                load_drafter("auto", real_target(target))
        assert asked == list(OFFICIAL.values())

    def test_unknown_hidden_size(self):
        with pytest.raises(UserError, match="no drafter is known for a gemma4_text target of hidden size 64"):
            load_drafter("auto", build_target(target_config("e2b")))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "no such folder"),
        ("not-a-repository-id", "neither a local folder nor a repository id"),
        ("a/b/c", "no such folder"),
    ],
)
def test_drafter_that_is_not_there(name, message):
    with pytest.raises(UserError, match=message):
        load_drafter(name, build_target(target_config("e2b")))
