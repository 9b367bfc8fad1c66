"""Quantized targets and drafters, in every combination, load as mlx-lm wrote them and decode as without a drafter."""

from functools import cache
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import gemma4_text as mlx_lm_gemma4_text
from mlx_lm.models import llama as mlx_lm_llama
from mlx_lm.utils import quantize_model

from mtp_mlx import generate_step, load_drafter, load_model
from mtp_mlx.errors import UserError
from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant, to_vocabulary_order
from mtp_mlx.models.gemma4_config import AssistantConfig
from tests.reference.cases import TOLERANCE, case, gap
from tests.tiny import (
    Config,
    build_drafter,
    build_target,
    drafter_config,
    random_weights,
    target_config,
    write_checkpoint,
)

BITS = [None, 4, 8, "mixed"]
PROMPT = case("e2b").ids[:20]


def mixed(path: str, _: nn.Module) -> bool | dict:
    """What makers of mixed-precision checkpoints do: sensitive parts at 8 bits, some at 5 or 6, some not at all."""
    if path.endswith(("router.proj", "embed_tokens_per_layer", "v_proj")):
        return {"group_size": 64, "bits": 8}
    if path.endswith(("lm_head", "down_proj")):
        return {"group_size": 32, "bits": 6}
    return not path.endswith(("o_proj", "per_layer_model_projection"))


def mlx_lm_model(config: Config) -> nn.Module:
    module = mlx_lm_llama if config["model_type"] == "llama" else mlx_lm_gemma4_text
    model = module.Model(module.ModelArgs.from_dict(config))
    model.load_weights(list(random_weights(build_target(config)).items()))
    return model


def write_quantized_target(folder: Path, config: Config, bits: int | str) -> nn.Module:
    """Converts with mlx-lm, whose own predicate keeps the router at 8 bits; returns its model."""
    predicate = mixed if bits == "mixed" else None
    model = mlx_lm_model(config)
    model.set_dtype(mx.bfloat16)
    model, config = quantize_model(
        model, config, group_size=64, bits=4 if bits == "mixed" else bits, quant_predicate=predicate
    )
    write_checkpoint(folder, config, tree_flatten(model.parameters(), destination={}))
    model.set_dtype(mx.float32)
    return model


def write_quantized_drafter(folder: Path, config: Config, bits: int | str) -> None:
    """As converters do it: the centroids and their order stay as they are."""
    drafter = build_drafter(config)
    drafter.set_dtype(mx.bfloat16)
    quantization = {"group_size": 32, "bits": 4 if bits == "mixed" else bits}
    modules = {}

    def predicate(path: str, module: nn.Module) -> bool | dict:
        answer = isinstance(module, nn.Linear | nn.Embedding) and "centroids" not in path
        if answer and bits == "mixed":
            answer = mixed(path, module)
            modules[path] = answer if isinstance(answer, dict) else answer and quantization
        return answer

    nn.quantize(drafter, **quantization, class_predicate=predicate)
    weights = to_vocabulary_order(tree_flatten(drafter.parameters(), destination={}))
    write_checkpoint(folder, config | {"quantization": {**quantization, **modules}}, weights)


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    @cache
    def target(name: str, bits: int | str | None) -> Gemma4:
        if bits is None:
            return build_target(target_config(name))
        folder = tmp_path_factory.mktemp("quantized") / "target"
        write_quantized_target(folder, target_config(name), bits)
        return load_model(folder)[0]

    return target


@pytest.fixture(scope="module")
def drafters(tmp_path_factory, targets):
    @cache
    def drafter(name: str, bits: int | str | None, clustered: bool) -> Gemma4Assistant:
        config = drafter_config(target_config(name), clustered=clustered)
        if bits is None:
            return build_drafter(config)
        folder = tmp_path_factory.mktemp("quantized") / "drafter"
        write_quantized_drafter(folder, config, bits)
        return load_drafter(folder, targets(name, None))

    return drafter


@pytest.fixture(scope="module")
def plain_tokens(targets):
    return cache(lambda name, bits: decode(targets(name, bits)))


def decode(model: Gemma4, drafter: Gemma4Assistant | None = None) -> list[int]:
    steps = generate_step(PROMPT, model, draft_model=drafter, num_draft_tokens=3, max_tokens=32)
    return [token for token, _, _ in steps]


@pytest.mark.parametrize("drafter_bits", [None, 4])
@pytest.mark.parametrize("target_bits", [4, 8])
def test_llama(targets, drafters, plain_tokens, target_bits, drafter_bits):
    drafter = drafters("llama", drafter_bits, clustered=True)
    assert decode(targets("llama", target_bits), drafter) == plain_tokens("llama", target_bits)


@pytest.mark.parametrize("drafter_bits", BITS)
@pytest.mark.parametrize("target_bits", BITS)
def test_every_combination_decodes_as_without_a_drafter(targets, drafters, plain_tokens, target_bits, drafter_bits):
    drafter = drafters("e2b", drafter_bits, clustered=True)
    tokens = decode(targets("e2b", target_bits), drafter)
    assert tokens == plain_tokens("e2b", target_bits)
    assert len(set(tokens)) > 8


@pytest.mark.parametrize("drafter_bits", [None, 4])
@pytest.mark.parametrize("target_bits", [4, "mixed"])
def test_experts_and_full_head(targets, drafters, plain_tokens, target_bits, drafter_bits):
    drafter = drafters("26b", drafter_bits, clustered=False)
    assert decode(targets("26b", target_bits), drafter) == plain_tokens("26b", target_bits)


@pytest.mark.parametrize("bits", [4, 8, "mixed"])
@pytest.mark.parametrize("name", ["e2b", "e4b", "31b", "26b", "llama", "llama-scaled"])
def test_target_computes_what_mlx_lms_does(name, bits, tmp_path):
    theirs = write_quantized_target(tmp_path / "target", target_config(name), bits)
    ours, _ = load_model(tmp_path / "target")
    ids = mx.array([PROMPT])
    assert gap(ours(ids), theirs(ids)) < TOLERANCE


def test_bits_of_each_module_are_honoured(targets, drafters):
    target, drafter = targets("26b", "mixed"), drafters("e2b", "mixed", clustered=True)
    layer = target.layers[0]
    assert (layer.router.proj.bits, layer.router.proj.group_size) == (8, 64)
    assert (layer.experts.switch_glu.down_proj.bits, layer.experts.switch_glu.down_proj.group_size) == (6, 32)
    assert (layer.experts.switch_glu.up_proj.bits, target.lm_head.bits) == (4, 6)
    assert type(layer.self_attn.o_proj) is nn.Linear
    assert targets("e2b", "mixed").model.embed_tokens_per_layer.bits == 8
    assert drafter.model.embed_tokens.bits == 4
    assert (drafter.model.layers[0].mlp.down_proj.bits, type(drafter.pre_projection)) == (6, nn.QuantizedLinear)


def test_router_stays_at_eight_bits(targets):
    router = targets("26b", 4).layers[0].router.proj
    assert (router.bits, targets("26b", 4).layers[0].self_attn.q_proj.bits) == (8, 4)


def test_centroids_and_their_order_stay_as_they_are(drafters):
    plain, quantized = (drafters("e2b", bits, clustered=True).masked_embedding for bits in (None, 4))
    assert type(quantized.centroids) is nn.Linear
    assert mx.array_equal(quantized.centroids.weight, plain.centroids.weight)
    assert mx.array_equal(quantized.token_ordering, plain.token_ordering)


def test_mixed_bits_come_back_as_they_were_written(tmp_path):
    config = drafter_config(target_config("e2b"), clustered=True)
    write_quantized_drafter(tmp_path / "drafter", config, "mixed")
    stored = mx.load(str(tmp_path / "drafter" / "model.safetensors"))
    drafter = load_drafter(tmp_path / "drafter", build_target(target_config("e2b")))
    loaded = to_vocabulary_order(tree_flatten(drafter.parameters(), destination={}))
    assert loaded.keys() == stored.keys()
    assert all(mx.array_equal(array, stored[name]) for name, array in loaded.items())


def test_global_bits_beside_modules_of_other_widths(tmp_path):
    """Some converters write one width into the config and keep the table of per-layer embeddings at another."""
    config = target_config("e2b")
    write_quantized_target(tmp_path / "right", config, "mixed")
    weights = mx.load(str(tmp_path / "right" / "model.safetensors"))
    model, outer = load_model(tmp_path / "right")
    block = {"group_size": 64, "bits": 4}
    write_checkpoint(tmp_path / "target", {**outer, "quantization": block, "quantization_config": block}, weights)
    ids = mx.array([PROMPT])
    assert mx.array_equal(load_model(tmp_path / "target")[0](ids), model(ids))


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_other_modes(mode, tmp_path):
    config = target_config("e2b")
    model = mlx_lm_model(config)
    model.set_dtype(mx.bfloat16)
    model, quantized = quantize_model(model, config, group_size=None, bits=None, mode=mode)
    write_checkpoint(tmp_path / "target", quantized, tree_flatten(model.parameters(), destination={}))
    model.set_dtype(mx.float32)
    ids = mx.array([PROMPT])
    assert gap(load_model(tmp_path / "target")[0](ids), model(ids)) < TOLERANCE


def test_scales_without_a_word_in_the_config(tmp_path):
    config = target_config("e2b")
    write_quantized_target(tmp_path / "right", config, 4)
    weights = mx.load(str(tmp_path / "right" / "model.safetensors"))
    with pytest.raises(UserError, match="its scales are in the file, config.json has no quantization block"):
        load_model(write_checkpoint(tmp_path / "target", config, weights))


def test_drafter_config_is_unchanged_by_quantization():
    config = drafter_config(target_config("e2b"), clustered=True)
    quantized = config | {"quantization": {"group_size": 32, "bits": 4}}
    assert AssistantConfig.from_dict(quantized) == AssistantConfig.from_dict(config)
