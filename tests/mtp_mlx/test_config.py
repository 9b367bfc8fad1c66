"""Both config dialects give the same model; the real configs give the real sizes; what is wrong is named."""

import math

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mtp_mlx.errors import UserError
from mtp_mlx.models import registry
from mtp_mlx.models.config import FULL, SLIDING
from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.gemma4_config import AssistantConfig, TextConfig
from tests.reference.cases import HEADS, real_config, saved_config
from tests.reference.names import WITH_GOLDENS
from tests.tiny import GEMMA4, drafter_config, target_config

# Parameters as transformers 5.24 counts them, and the last owners of keys and values (sliding, full).
TARGETS = {
    "gemma-4-e2b": ("4.63e9", 13, 14),
    "gemma-4-e4b": ("7.46e9", 22, 23),
    "gemma-4-26b-a4b": ("2.523e10", 28, 29),
    "gemma-4-31b": ("3.070e10", 58, 59),
}
DRAFTERS = {
    "gemma-4-e2b-assistant": "7.773e7",
    "gemma-4-e4b-assistant": "7.852e7",
    "gemma-4-26b-a4b-assistant": "4.197e8",
    "gemma-4-31b-assistant": "4.695e8",
}


def count_parameters(module) -> int:
    """Without `token_ordering`, which is an index and no parameter."""
    parameters = tree_flatten(module.parameters(), destination={})
    parameters.pop("masked_embedding.token_ordering", None)
    return sum(array.size for array in parameters.values())


def rounded_like(count: int, expected: str) -> float:
    digits = len(expected.split("e")[0].replace(".", ""))
    return round(count, digits - 1 - int(math.log10(count)))


@pytest.mark.parametrize(("name", "expected", "sliding", "full"), [(n, *rest) for n, rest in TARGETS.items()])
def test_real_targets_are_instantiated_without_memory(name, expected, sliding, full):
    before = mx.get_active_memory()
    config = TextConfig.from_dict(real_config(name))
    assert rounded_like(count_parameters(Gemma4(config)), expected) == float(expected)
    assert mx.get_active_memory() - before < 2**20
    assert (config.last_owner(SLIDING), config.last_owner(FULL)) == (sliding, full)


@pytest.mark.parametrize(("name", "expected"), DRAFTERS.items())
def test_real_drafters_are_instantiated_without_memory(name, expected):
    before = mx.get_active_memory()
    drafter = Gemma4Assistant(AssistantConfig.from_dict(real_config(name)))
    assert rounded_like(count_parameters(drafter), expected) == float(expected)
    assert mx.get_active_memory() - before < 2**20


def test_e2b_has_wide_mlps_where_it_shares_keys_and_values():
    layers = TextConfig.from_dict(real_config("gemma-4-e2b")).layers
    assert [layer.intermediate_size for layer in layers] == [6144] * 15 + [12288] * 20
    assert [layer.owns_kv for layer in layers] == [True] * 15 + [False] * 20


@pytest.mark.parametrize("name", GEMMA4)
def test_targets_config_as_transformers_writes_it(name):
    saved = saved_config(name)
    assert "per_layer_config" in saved and "global_head_dim" not in saved
    assert TextConfig.from_dict(saved) == TextConfig.from_dict(target_config(name))


def test_llama_config_in_both_dialects():
    saved = saved_config("llama-scaled")
    assert "rope_parameters" in saved and "rope_theta" not in saved and "rope_scaling" not in saved
    assert registry.target_config(saved) == registry.target_config(target_config("llama-scaled"))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", WITH_GOLDENS)
def test_drafters_config_as_transformers_writes_it(name, head):
    saved = saved_config(f"{name}-{head}")
    assert "per_layer_config" in saved["text_config"]
    ours = AssistantConfig.from_dict(drafter_config(target_config(name), clustered=head == "clustered"))
    theirs = AssistantConfig.from_dict(saved)
    assert theirs.text.layers == ours.text.layers
    assert (theirs.use_ordered_embeddings, theirs.num_centroids, theirs.centroid_intermediate_top_k) == (
        (ours.use_ordered_embeddings, ours.num_centroids, ours.centroid_intermediate_top_k)
    )


def test_global_head_dim_absent_means_512_and_null_means_head_dim():
    config = target_config("e2b")
    del config["global_head_dim"]
    assert TextConfig.from_dict(config).layers[2].head_dim == 512
    assert TextConfig.from_dict(config | {"global_head_dim": None}).layers[2].head_dim == 16


def test_global_kv_heads_hold_only_where_keys_are_values():
    config = target_config("31b")
    assert [layer.num_key_value_heads for layer in TextConfig.from_dict(config).layers] == [2, 2, 1, 2, 2, 1]
    without = TextConfig.from_dict(config | {"attention_k_eq_v": False})
    assert [layer.num_key_value_heads for layer in without.layers] == [2] * 6


def test_multimodal_config_gives_its_text_model():
    text = target_config("e2b")
    outer = {"model_type": "gemma4", "text_config": text, "vision_config": {"hidden_size": 5}, "eos_token_id": [1, 50]}
    config = TextConfig.from_dict(outer)
    assert config.layers == TextConfig.from_dict(text).layers
    assert config.hidden_size == 64
    assert config.eos_token_ids == (1, 50, 106)


REQUIRED = ["vocab_size", "hidden_size", "num_hidden_layers", "layer_types", "num_attention_heads", "sliding_window"]
REQUIRED += ["head_dim", "num_key_value_heads", "intermediate_size"]


@pytest.mark.parametrize("field", REQUIRED)
@pytest.mark.parametrize("config", [target_config("e2b"), drafter_config(target_config("e2b"), clustered=True)])
def test_missing_field_is_named(config, field):
    is_drafter = "text_config" in config
    inner = {name: value for name, value in (config["text_config"] if is_drafter else config).items() if name != field}
    with pytest.raises(UserError, match=f"config.json lacks '{field}'"):
        if is_drafter:
            AssistantConfig.from_dict(config | {"text_config": inner})
        else:
            TextConfig.from_dict(inner)


@pytest.mark.parametrize("field", ["num_experts", "top_k_experts", "moe_intermediate_size"])
def test_missing_field_of_experts_is_named(field):
    config = target_config("26b")
    del config[field]
    with pytest.raises(UserError, match=f"config.json lacks '{field}'"):
        TextConfig.from_dict(config)


def test_multimodal_config_without_text_config():
    with pytest.raises(UserError, match="config.json lacks 'vocab_size'"):
        TextConfig.from_dict({"model_type": "gemma4", "text_config": None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen2"}, "not a target .*'qwen2'.*supported model types: gemma4, .*llama"),
        ({"model_type": None}, "not a target .*None"),
        ({"model_type": "gemma4_assistant"}, "this is a drafter: pass it as the draft model"),
        ({"layer_types": [SLIDING, FULL]}, "layer_types must name 8 layers.*2 layers"),
        ({"layer_types": [SLIDING] * 7 + ["linear_attention"]}, "linear_attention"),
        ({"num_kv_shared_layers": 6}, "no layer of type full_attention has keys and values of its own"),
        ({"num_kv_shared_layers": 8}, "no layer of type full_attention, sliding_attention"),
    ],
)
def test_wrong_target_config(changes, message):
    with pytest.raises(UserError, match=message) as error:
        registry.target_config(target_config("e2b") | changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma4_text"}, "not a drafter .*this is a target: pass its drafter"),
        ({"num_centroids": 15}, "vocabulary that num_centroids divides.*vocab_size 128, num_centroids 15"),
        ({"num_centroids": 0}, "vocabulary that num_centroids divides"),
        ({"centroid_intermediate_top_k": 17}, "between 1 and num_centroids = 16"),
        ({"centroid_intermediate_top_k": 0}, "between 1 and num_centroids = 16"),
        ({"num_centroids": None}, "lacks 'num_centroids'"),
        ({"backbone_hidden_size": None}, "lacks 'backbone_hidden_size'"),
        ({"text_config": None}, "lacks 'text_config'"),
    ],
)
def test_wrong_drafter_config(changes, message):
    config = drafter_config(target_config("e2b"), clustered=True)
    with pytest.raises(UserError, match=message):
        registry.drafter_config(config | changes)


def test_full_head_needs_no_clusters():
    config = drafter_config(target_config("e2b"), clustered=False)
    del config["num_centroids"], config["centroid_intermediate_top_k"]
    assert not AssistantConfig.from_dict(config).use_ordered_embeddings


def test_a_per_layer_table_without_a_row_for_every_id_is_refused():
    with pytest.raises(UserError, match="vocab_size_per_layer_input must not be less"):
        TextConfig.from_dict(target_config("e2b", vocab_size_per_layer_input=100))


COUNTS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "sliding_window", "head_dim")
COUNTS += ("global_head_dim", "num_key_value_heads", "intermediate_size", "max_position_embeddings")
NO_COUNT = ("64", -1, 2.5, 64.0, True, 10**30, float("nan"), [64], {})
ROPE = {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize("field", COUNTS)
def test_a_count_that_is_none_is_named(field):
    for value in NO_COUNT:
        with pytest.raises(UserError, match=f"config.json's {field} must be a whole number from 1 to") as error:
            TextConfig.from_dict(target_config("e2b") | {field: value})
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_shared_layers": -1}, "num_kv_shared_layers must be a whole number from 0"),
        ({"layer_types": "sliding_attention"}, "layer_types must be a list of names"),
        ({"layer_types": [None] * 8}, "layer_types must be a list of names"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a positive number"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps must be a positive number"),
        ({"final_logit_softcapping": 0}, "final_logit_softcapping must be a positive number or null"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings must be true or false"),
        ({"use_double_wide_mlp": "false"}, "use_double_wide_mlp must be true, false or null"),
        ({"text_config": [1]}, "text_config must be an object or null"),
        ({"eos_token_id": 2.5}, "eos_token_id must be a token id or a list of token ids"),
        ({"eos_token_id": ["1"]}, "eos_token_id must be a token id or a list of token ids"),
        ({"rope_parameters": 7}, "rope_parameters must be an object or null"),
        ({"rope_parameters": {SLIDING: None}}, r"rope_parameters\[sliding_attention\] must be an object"),
        ({"rope_parameters": {FULL: {}}}, r"rope_parameters\[full_attention\] lacks 'rope_theta'"),
        ({"rope_parameters": {FULL: ROPE | {"rope_theta": "abc"}}}, "rope_theta must be a positive number"),
        ({"rope_parameters": {FULL: ROPE | {"rope_theta": 10**30}}}, "rope_theta must be a positive number"),
        ({"rope_parameters": {FULL: ROPE | {"rope_type": -1}}}, "rope_type must be one of default, linear"),
        ({"rope_parameters": {FULL: ROPE | {"partial_rotary_factor": 2}}}, "partial_rotary_factor must be a number"),
        ({"per_layer_config": {"0": 5}}, r"per_layer_config\[0\] must be an object"),
        ({"per_layer_config": {"0": {"head_dim": 0}}}, r"per_layer_config\[0\]\.head_dim must be a whole number"),
        ({"num_attention_heads": 5, "num_key_value_heads": 2}, "must be a multiple of the key-value heads.*5 and 2"),
    ],
)
def test_a_field_of_another_kind_is_named(changes, message):
    with pytest.raises(UserError, match=message) as error:
        registry.target_config(target_config("e2b") | changes)
    assert "\n" not in str(error.value)


def test_no_more_experts_are_chosen_than_there_are():
    with pytest.raises(UserError, match="top_k_experts must be from 1 to num_experts = 8"):
        TextConfig.from_dict(target_config("26b", top_k_experts=9))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text_config": 5}, "text_config must be an object"),
        ({"backbone_hidden_size": "64"}, "backbone_hidden_size must be a whole number"),
        ({"num_centroids": 16.0}, "num_centroids must be a whole number"),
        ({"use_ordered_embeddings": "no"}, "use_ordered_embeddings must be true, false or null"),
    ],
)
def test_a_drafters_field_of_another_kind_is_named(changes, message):
    with pytest.raises(UserError, match=message):
        AssistantConfig.from_dict(drafter_config(target_config("e2b"), clustered=True) | changes)


def test_a_drafters_text_config_without_a_type():
    config = drafter_config(target_config("e2b"), clustered=True)
    del config["text_config"]["model_type"]
    with pytest.raises(UserError, match="config.json lacks 'model_type'"):
        AssistantConfig.from_dict(config)


def test_null_is_as_absent_where_there_is_a_default():
    config = target_config("e2b")
    for field in ("rms_norm_eps", "max_position_embeddings", "enable_moe_block", "num_experts"):
        config[field] = None
    nulls = TextConfig.from_dict(config)
    for field in ("rms_norm_eps", "max_position_embeddings", "enable_moe_block", "num_experts"):
        del config[field]
    assert nulls == TextConfig.from_dict(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act must be \"silu\" .given: 'gelu'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type must be one of default, linear"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling lacks 'factor'"),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": -1}},
            "rope_parameters.factor must be a positive number",
        ),
        ({"num_attention_heads": 3}, "must be a multiple of the key-value heads.*3 and 2"),
        ({"num_attention_heads": 6}, "hidden_size must be a multiple of num_attention_heads .*64 and 6"),
        ({"layer_types": [SLIDING] * 4}, "lacks 'sliding_window'"),
        ({"layer_types": [FULL] * 3}, "layer_types must name 4 layers"),
        ({"attention_bias": 1}, "attention_bias must be true, false or null"),
        ({"intermediate_size": None}, "lacks 'intermediate_size'"),
    ],
)
def test_wrong_llama_config(changes, message):
    with pytest.raises(UserError, match=message) as error:
        registry.target_config(target_config("llama") | changes)
    assert "\n" not in str(error.value)


def test_llama_heads_and_scaling_in_older_files():
    old = target_config("llama", rope_scaling={"type": "linear", "factor": 2.0}, num_key_value_heads=None)
    config = registry.target_config(old)
    assert config.rope == {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}
    assert {(layer.num_key_value_heads, layer.head_dim) for layer in config.layers} == {(4, 16)}
    assert config.sliding_window is None and config.kv_types == (FULL,)
