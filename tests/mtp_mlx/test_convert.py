"""Conversions of all architectures load here and in mlx-lm, compute the same, and take the memory of one shard."""

import json
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.utils
import pytest
from mlx.utils import tree_flatten

from mtp_mlx import load_drafter, load_model
from mtp_mlx.convert import Options, convert
from mtp_mlx.errors import MisuseError, UserError
from mtp_mlx.memory import estimated_bytes
from mtp_weights.read import read_config, read_weights
from mtp_weights.recipe import Recipe
from tests.reference.cases import case, saved_config
from tests.tiny import (
    ARCHITECTURES,
    build_target,
    drafter_config,
    hugging_face_names,
    multimodal,
    random_weights,
    target_config,
    write_checkpoint,
    write_drafter,
    write_target,
)

IDS = mx.array([case("e2b").ids[:20]])
WAYS = {
    "4bit": Options(quantize=True, q_bits=4),
    "8bit": Options(quantize=True, q_bits=8, q_group_size=32),
    "mixed": Options(quantize=True, mixed="mixed_3_6"),
    "mxfp4": Options(quantize=True, q_mode="mxfp4"),
    "float32": Options(dtype="float32"),
}


def logits_of_mlx_lm(folder: Path) -> mx.array:
    model, _ = mlx_lm.utils.load_model(folder)
    model.set_dtype(mx.float32)
    return model(IDS)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_both_loaders_read_a_converted_target(name, way, tmp_path):
    source = write_target(tmp_path / "source", target_config(name))
    convert(source, tmp_path / "converted", WAYS[way])
    model, config = load_model(tmp_path / "converted")
    theirs = logits_of_mlx_lm(tmp_path / "converted")
    assert mx.abs(model(IDS) - theirs).max().item() < 1e-3
    assert ("quantization" in config) == (way != "float32")
    assert config.get("quantization") == config.get("quantization_config")


@pytest.mark.parametrize("name", ["e2b", "12b", "26b"])
def test_both_loaders_read_a_converted_multimodal_target(name, tmp_path):
    config, weights = target_config(name), random_weights(build_target(target_config(name)))
    outer, named = multimodal(config, hugging_face_names(weights))
    named["model.vision_tower.weight"] = mx.ones((2, 2))
    source = write_checkpoint(tmp_path / "source", outer, named)
    convert(source, tmp_path / "converted", WAYS["4bit"])
    model, _ = load_model(tmp_path / "converted")
    assert mx.abs(model(IDS) - logits_of_mlx_lm(tmp_path / "converted")).max().item() < 1e-3
    assert not any("vision" in key for key in read_weights(tmp_path / "converted"))


@pytest.mark.parametrize("name", ["31b", "26b", "e2b"])
def test_the_config_dialect_that_mlx_lm_cannot_read_is_rewritten(name, tmp_path):
    config = saved_config(name)
    assert "per_layer_config" in config
    source = write_checkpoint(tmp_path / "source", config, random_weights(build_target(config)))
    convert(source, tmp_path / "converted", WAYS["8bit"])
    model, written = load_model(tmp_path / "converted")
    assert "per_layer_config" not in written
    assert mx.abs(model(IDS) - logits_of_mlx_lm(tmp_path / "converted")).max().item() < 1e-3


def test_sensitive_modules_keep_eight_bits(tmp_path):
    for name in ("e2b", "26b"):
        source = write_target(tmp_path / name, target_config(name))
        convert(source, tmp_path / f"{name}-4bit", WAYS["mxfp4"])
    e2b, moe = load_model(tmp_path / "e2b-4bit")[0], load_model(tmp_path / "26b-4bit")[0]
    table = e2b.model.embed_tokens_per_layer
    assert (table.bits, table.group_size, table.mode) == (8, 64, "affine")
    assert moe.layers[0].router.proj.bits == 8
    assert (e2b.layers[0].mlp.up_proj.bits, e2b.layers[0].mlp.up_proj.mode) == (4, "mxfp4")


def test_a_mixed_recipe_gives_more_bits_to_some_layers_and_to_the_head(tmp_path):
    convert(write_target(tmp_path / "source", target_config("e2b")), tmp_path / "converted", WAYS["mixed"])
    model, _ = load_model(tmp_path / "converted")
    bits = [layer.mlp.down_proj.bits for layer in model.layers]
    assert (bits[0], bits[-1], model.lm_head.bits) == (6, 6, 6) and 3 in bits
    assert {layer.mlp.up_proj.bits for layer in model.layers} == {3}


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("way", ["4bit", "mixed", "mxfp4"])
def test_a_converted_drafter_drafts(way, clustered, tmp_path):
    target = target_config("e2b")
    source = write_drafter(tmp_path / "source", drafter_config(target, clustered=clustered))
    convert(source, tmp_path / "converted", WAYS[way])
    drafter = load_drafter(tmp_path / "converted", build_target(target))
    assert isinstance(drafter.pre_projection, nn.QuantizedLinear)
    before, after = read_weights(source), read_weights(tmp_path / "converted")
    if clustered:
        for name in ("masked_embedding.centroids.weight", "masked_embedding.token_ordering"):
            assert before[name].dtype == after[name].dtype and mx.array_equal(before[name], after[name])


@pytest.mark.parametrize("way", ["4bit", "mixed", "mxfp4"])
@pytest.mark.parametrize("name", ["e2b", "26b"])
def test_dequantized_it_computes_what_it_did_quantized(name, way, tmp_path):
    convert(write_target(tmp_path / "source", target_config(name)), tmp_path / "quantized", WAYS[way])
    result = convert(tmp_path / "quantized", tmp_path / "back", Options(dequantize=True, dtype="float32"))
    quantized, _ = load_model(tmp_path / "quantized")
    model, config = load_model(tmp_path / "back")
    assert result.bits_per_weight == 32 and not {"quantization", "quantization_config"} & set(config)
    assert isinstance(model.layers[0].mlp.up_proj, nn.Linear)
    assert mx.abs(model(IDS) - quantized(IDS)).max().item() < 1e-2
    assert mx.abs(model(IDS) - logits_of_mlx_lm(tmp_path / "back")).max().item() < 1e-3


def test_a_drafter_dequantized(tmp_path):
    target = target_config("e2b")
    source = write_drafter(tmp_path / "source", drafter_config(target, clustered=True))
    convert(source, tmp_path / "quantized", WAYS["8bit"])
    convert(tmp_path / "quantized", tmp_path / "back", Options(dequantize=True))
    before, after = read_weights(source), read_weights(tmp_path / "back")
    assert {name: array.shape for name, array in after.items()} == {name: a.shape for name, a in before.items()}
    assert mx.array_equal(before["masked_embedding.token_ordering"], after["masked_embedding.token_ordering"])
    projection = "pre_projection.weight"
    assert 0 < mx.abs(before[projection] - after[projection]).max().item() < 0.05
    load_drafter(tmp_path / "back", build_target(target))


def test_what_is_not_quantized_stays_to_the_bit(tmp_path):
    source = write_target(tmp_path / "source", target_config("e2b"))
    convert(source, tmp_path / "converted", WAYS["4bit"])
    before, after = read_weights(source), read_weights(tmp_path / "converted")
    same = [name for name in before if f"{name.removesuffix('.weight')}.scales" not in after]
    assert len(same) > 20 and all(mx.array_equal(before[name], after[name]) for name in same)


def test_memory_is_that_of_one_shard_and_one_tensor(tmp_path):
    wide = target_config("31b", hidden_size=512, intermediate_size=2048)
    source = write_target(tmp_path / "source", wide)
    total = sum(array.nbytes for array in read_weights(source).values())
    shard = 4_000_000
    mx.clear_cache()
    result = convert(source, tmp_path / "converted", WAYS["8bit"], shard_bytes=shard)
    assert len(list((tmp_path / "converted").glob("model-*.safetensors"))) > 3
    assert total > 5 * shard > result.peak_memory * 2.5
    assert result.peak_memory < 2 * shard


def test_other_files_come_along(tmp_path):
    source = write_target(tmp_path / "source", target_config("e2b"))
    for name in ("tokenizer.json", "generation_config.json", "chat_template.jinja"):
        (source / name).write_text("{}")
    (source / "modeling.py").write_text("raise SystemExit")
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    convert(source, tmp_path / "converted", WAYS["4bit"], name="google/gemma-4-E2B-it")
    names = {path.name for path in (tmp_path / "converted").iterdir()}
    copied = {"tokenizer.json", "generation_config.json", "chat_template.jinja"}
    assert names == {"config.json", "model.safetensors", "README.md", *copied}
    card = (tmp_path / "converted" / "README.md").read_text()
    assert "base_model: google/gemma-4-E2B-it" in card
    assert "quantization: affine, 4 bits, group size 64" in card


def test_the_estimate_of_a_conversion_is_what_it_weighs(tmp_path):
    config = target_config("26b")
    convert(write_target(tmp_path / "source", config), tmp_path / "converted", WAYS["4bit"])
    written = sum(array.nbytes for array in read_weights(tmp_path / "converted").values())
    assert estimated_bytes(config, Recipe.of(4)) == written


def test_what_cannot_be_converted_is_refused_and_leaves_nothing(tmp_path):
    source = write_target(tmp_path / "source", target_config("e2b"))
    convert(source, tmp_path / "converted", WAYS["4bit"])
    with pytest.raises(MisuseError, match="quantized already .*convert the one in 16 bits"):
        convert(tmp_path / "converted", tmp_path / "again", WAYS["4bit"])
    with pytest.raises(MisuseError, match="the checkpoint is not quantized .*use it as it is"):
        convert(source, tmp_path / "again", Options(dequantize=True))
    with pytest.raises(UserError, match="the output folder has a checkpoint"):
        convert(source, tmp_path / "converted", WAYS["4bit"])
    weights = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(weights[:-10])
    with pytest.raises(UserError, match="truncated"):
        convert(source, tmp_path / "again", WAYS["4bit"])
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing to convert; give -q to quantize, --dequantize, or --dtype"),
        ({"q_bits": 4}, "these options say how to quantize; give -q, too"),
        ({"quantize": True, "dequantize": True}, "quantized or dequantized; give one of -q and --dequantize"),
        ({"dtype": "int8"}, r"no such dtype \(given: int8\); there are float16, bfloat16, float32"),
        ({"quantize": True, "q_bits": 7}, r"7 bits, group size 64\); bits can be 2, 3, 4, 5, 6, 8"),
        ({"quantize": True, "q_group_size": 100}, "given: 4 bits, group size 100.*group size 32, 64, 128"),
        ({"quantize": True, "q_mode": "int4"}, r"given: int4\); MLX has affine, mxfp4"),
        ({"quantize": True, "mixed": "mixed_1_2"}, "no such recipe .*mixed_2_6"),
        ({"quantize": True, "mixed": "mixed_4_6", "q_bits": 4}, "a recipe of two widths is affine"),
    ],
)
def test_options_that_can_never_work(options, message):
    with pytest.raises(MisuseError, match=message):
        Options(**options)


def test_converting_twice_gives_the_same(tmp_path):
    source = write_target(tmp_path / "source", target_config("e4b"))
    for folder in ("a", "b"):
        convert(source, tmp_path / folder, WAYS["4bit"])
    a, b = (load_model(tmp_path / folder)[0] for folder in ("a", "b"))
    assert all(mx.array_equal(x, y) for (_, x), (_, y) in zip(*map(flat, (a, b)), strict=True))
    assert json.dumps(read_config(tmp_path / "a")) == json.dumps(read_config(tmp_path / "b"))


def flat(module: nn.Module) -> list[tuple[str, mx.array]]:
    return tree_flatten(module.parameters())
