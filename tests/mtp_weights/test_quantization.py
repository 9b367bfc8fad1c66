"""The config's word on quantization, in every spelling, and its contradictions with the tensors."""

import mlx.core as mx
import pytest

from mtp_weights.errors import UserError
from mtp_weights.quantization import module_quantization, quantization_of

PATH = "model.layers.0.mlp.up_proj"
GLOBAL = {"group_size": 64, "bits": 4, "mode": "affine"}


def quantized(path: str = PATH, in_dims: int = 128, **how) -> dict[str, mx.array]:
    """The tensors of a module that MLX quantized."""
    arrays = mx.quantize(mx.random.normal((8, in_dims)), **how)
    return {f"{path}.{kind}": array for kind, array in zip(("weight", "scales", "biases"), arrays, strict=False)}


@pytest.mark.parametrize(
    "config",
    [
        {"quantization": {"group_size": 64, "bits": 4}},
        {"quantization_config": {"group_size": 64, "bits": 4, "mode": "affine"}},
        {"quantization": {"group_size": 64, "bits": 4}, "quantization_config": {"quant_method": "stale"}},
        {"text_config": {"quantization": {"group_size": 64, "bits": 4}}},
        {"quantization": {"bits": 4}},
    ],
)
def test_finds_the_block(config):
    assert quantization_of(config) == {**GLOBAL, "modules": {}}


@pytest.mark.parametrize(
    "config",
    [{}, {"quantization": None}, {"quantization_config": None, "text_config": None}, {"quantization": {}}],
)
def test_no_block(config):
    assert quantization_of(config) is None


def test_a_mode_brings_its_own_widths():
    assert quantization_of({"quantization": {"mode": "mxfp4"}}) == {
        "group_size": 32,
        "bits": 4,
        "mode": "mxfp4",
        "modules": {},
    }


def test_module_paths_become_canonical():
    own = {"group_size": 32, "bits": 8}
    block = {
        **GLOBAL,
        "language_model.model.embed_tokens": own,
        "model.language_model.layers.0.self_attn.q_proj": own,
        "layers.0.router.proj": {"group_size": 64, "bits": 8},
        "language_model.lm_head": False,
        "model.layers.1.experts.gate_up_proj": own,
        "masked_embedding.centroids": False,
        "model.layers.2.mlp.up_proj": True,
    }
    eight = {"group_size": 32, "bits": 8, "mode": "affine"}
    assert quantization_of({"quantization": block})["modules"] == {
        "model.embed_tokens": eight,
        "model.layers.0.self_attn.q_proj": eight,
        "model.layers.0.router.proj": {"group_size": 64, "bits": 8, "mode": "affine"},
        "lm_head": None,
        "model.layers.1.experts.switch_glu.gate_proj": eight,
        "model.layers.1.experts.switch_glu.up_proj": eight,
        "masked_embedding.centroids": None,
    }


def test_an_entry_without_a_mode_is_affine_as_in_mlx():
    block = {"mode": "mxfp4", "group_size": 32, "bits": 4, "a": {"group_size": 64, "bits": 8}}
    assert quantization_of({"quantization": block})["modules"]["model.a"]["mode"] == "affine"


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "awq", "compressed-tensors", "fp8"])
def test_other_formats_are_refused(method):
    with pytest.raises(UserError, match=f"format that MLX does not have .*{method}.*mlx-community"):
        quantization_of({"quantization_config": {"quant_method": method, "bits": 4}})


@pytest.mark.parametrize(
    "block",
    [
        {"bits": 7},
        {"group_size": 48},
        {"mode": "q4_k"},
        {"mode": "nvfp4", "group_size": 32, "bits": 4},
        {"bits": 4, "group_size": 64, "model.a": {"bits": 9}},
        [4],
    ],
)
def test_widths_that_mlx_does_not_have_are_refused(block):
    with pytest.raises(UserError, match="quantization"):
        quantization_of({"quantization": block})


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_the_global_values_of_a_module(bits, group_size):
    how = {"group_size": group_size, "bits": bits, "mode": "affine"}
    weights = quantized(**how)
    assert module_quantization(PATH, quantization_of({"quantization": how}), weights) == how


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4", "mxfp8"])
def test_the_other_modes(mode):
    quantization = quantization_of({"quantization": {"mode": mode}})
    assert module_quantization(PATH, quantization, quantized(mode=mode), 128)["mode"] == mode


def test_an_entry_of_its_own_comes_first():
    quantization = quantization_of({"quantization": {**GLOBAL, PATH: {"group_size": 32, "bits": 8}}})
    weights = quantized(group_size=32, bits=8)
    expected = {"group_size": 32, "bits": 8, "mode": "affine"}
    assert module_quantization(PATH, quantization, weights) == expected
    assert module_quantization(PATH, quantization, weights, in_dims=128) == expected


def test_stacked_experts_are_read_alike():
    arrays = mx.quantize(mx.random.normal((4, 8, 128)), 64, 4)
    weights = {f"{PATH}.{kind}": array for kind, array in zip(("weight", "scales", "biases"), arrays, strict=True)}
    assert module_quantization(PATH, quantization_of({"quantization": GLOBAL}), weights, 128) == GLOBAL


def test_without_scales_a_module_is_not_quantized():
    weights = {f"{PATH}.weight": mx.zeros((8, 128))}
    assert module_quantization(PATH, quantization_of({"quantization": GLOBAL}), weights) is None
    assert module_quantization(PATH, None, weights) is None


def test_shapes_speak_for_a_module_that_the_config_does_not_name():
    weights = quantized(group_size=32, bits=8)
    found = module_quantization(PATH, quantization_of({"quantization": GLOBAL}), weights, in_dims=128)
    assert found == {"group_size": 32, "bits": 8, "mode": "affine"}


@pytest.mark.parametrize(
    ("block", "how", "in_dims"),
    [
        (GLOBAL, {"group_size": 64, "bits": 8}, None),
        (GLOBAL, {"group_size": 32, "bits": 4}, None),
        ({**GLOBAL, PATH: {"group_size": 64, "bits": 8}}, {"group_size": 64, "bits": 4}, None),
        # 8 bits in groups of 32 have the words and scales of 4 bits in groups of 64: in_dims tells which.
        ({**GLOBAL, PATH: {"group_size": 64, "bits": 4}}, {"group_size": 32, "bits": 8}, 128),
        (GLOBAL, {"group_size": 64, "bits": 4}, 96),
        ({**GLOBAL, PATH: False}, {"group_size": 64, "bits": 4}, None),
        ({"mode": "mxfp4"}, {"group_size": 32, "bits": 4}, None),
        ({"group_size": 32, "bits": 4}, {"mode": "mxfp4"}, None),
    ],
)
def test_contradictions_are_refused(block, how, in_dims):
    quantization = quantization_of({"quantization": block})
    with pytest.raises(UserError, match=f"quantization of {PATH} contradicts itself"):
        module_quantization(PATH, quantization, quantized(**how), in_dims)


def test_scales_without_a_block_or_a_weight_are_refused():
    weights = quantized(group_size=64, bits=4)
    with pytest.raises(UserError, match="no quantization block"):
        module_quantization(PATH, None, weights)
    del weights[f"{PATH}.weight"]
    with pytest.raises(UserError, match="scales without a weight"):
        module_quantization(PATH, quantization_of({"quantization": GLOBAL}), weights)
