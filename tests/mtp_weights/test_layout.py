"""Every layout of a Gemma 4 checkpoint comes out under the same names."""

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import gemma4 as mlx_lm_gemma4

from mtp_weights.errors import UserError
from mtp_weights.layout import drafter_weights, target_weights

TEXT = (
    "embed_tokens.weight",
    "layers.0.mlp.up_proj.weight",
    "norm.weight",
    "per_layer_model_projection.weight",
)
PREFIXES = (
    "",
    "model.",
    "language_model.",
    "model.language_model.",
    "language_model.model.",
    "model.model.",
    "model.language_model.model.",
    "language_model.model.language_model.model.",
    "_orig_mod.model.",
)


def named(*names: str) -> dict[str, mx.array]:
    return {name: mx.array(number) for number, name in enumerate(names)}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_target_prefixes(prefix):
    weights = target_weights(named(*(prefix + name for name in TEXT)), kv_owners=1, tied=True)
    assert {name: array.item() for name, array in weights.items()} == {
        f"model.{name}": number for number, name in enumerate(TEXT)
    }


@pytest.mark.parametrize("prefix", ["", "model.", "language_model.", "language_model.model."])
def test_towers_and_buffers_are_dropped(prefix):
    others = (
        "vision_tower.encoder.layers.0.self_attn.k_proj.linear.weight",
        "audio_tower.layers.0.norm.weight",
        "multi_modal_projector.weight",
        "embed_vision.embedding_projection.weight",
        "embed_audio.embedding_projection.weight",
        "vision_embedder.patch_dense.weight",
        "layers.0.self_attn.rotary_emb.inv_freq",
        "rotary_emb.full_attention_inv_freq",
        "layers.0.mlp.up_proj.input_max",
        "layers.0.mlp.up_proj.output_min",
    )
    weights = target_weights(named(*(prefix + name for name in (*others, "norm.weight"))), kv_owners=1, tied=True)
    assert weights.keys() == {"model.norm.weight"}


def test_shared_layers_lose_their_unused_keys_and_values():
    parts = (
        "q_proj.weight",
        "k_proj.weight",
        "k_proj.scales",
        "v_proj.weight",
        "k_norm.weight",
        "o_proj.weight",
    )
    names = [f"model.layers.{layer}.self_attn.{part}" for layer in (2, 3, 12) for part in parts]
    weights = target_weights(named(*names), kv_owners=3, tied=True)
    used = {"q_proj.weight", "o_proj.weight"}
    expected = {f"model.layers.2.self_attn.{part}" for part in parts}
    expected |= {f"model.layers.{layer}.self_attn.{part}" for layer in (3, 12) for part in used}
    assert weights.keys() == expected


@pytest.mark.parametrize("prefix", ["", "model.", "language_model."])
def test_the_head_is_kept_only_where_it_is_not_tied(prefix):
    weights = named(f"{prefix}lm_head.weight", f"{prefix}lm_head.scales", "model.norm.weight")
    assert target_weights(weights, 1, tied=True).keys() == {"model.norm.weight"}
    untied = target_weights(weights, 1, tied=False)
    assert untied.keys() == {"lm_head.weight", "lm_head.scales", "model.norm.weight"}


def test_fused_experts_are_split():
    gate_up = mx.arange(2 * 6 * 4).reshape(2, 6, 4)
    weights = {
        "model.language_model.layers.0.experts.gate_up_proj": gate_up,
        "model.language_model.layers.0.experts.down_proj": mx.ones((2, 4, 3)),
    }
    out = target_weights(weights, kv_owners=1, tied=True)
    base = "model.layers.0.experts.switch_glu"
    assert mx.array_equal(out[f"{base}.gate_proj.weight"], gate_up[:, :3])
    assert mx.array_equal(out[f"{base}.up_proj.weight"], gate_up[:, 3:])
    assert out[f"{base}.down_proj.weight"].shape == (2, 4, 3)
    assert len(out) == 3


def test_fused_quantized_experts_are_split_alike():
    matrix = mx.random.normal((2, 6, 64))
    weights = dict(zip(("weight", "scales", "biases"), mx.quantize(matrix, 32, 4), strict=True))
    base = "language_model.model.layers.0.experts"
    out = target_weights({f"{base}.gate_up_proj.{kind}": array for kind, array in weights.items()}, 1, tied=True)
    up = [out[f"model.layers.0.experts.switch_glu.up_proj.{kind}"] for kind in ("weight", "scales", "biases")]
    assert mx.array_equal(mx.dequantize(*up, 32, 4), mx.dequantize(*weights.values(), 32, 4)[:, 3:])


def test_converted_experts_keep_their_names():
    names = [f"model.layers.0.experts.switch_glu.{part}_proj.weight" for part in ("gate", "up", "down")]
    assert target_weights(named(*names), 1, tied=True).keys() == set(names)


def test_experts_of_another_shape_are_refused():
    with pytest.raises(UserError, match="experts.gate_up_proj must have shape"):
        target_weights({"layers.0.experts.gate_up_proj": mx.ones((2, 5, 4))}, 1, tied=True)


def test_two_tensors_for_one_name_are_refused():
    with pytest.raises(UserError, match="two tensors for model.norm.weight"):
        target_weights(named("model.norm.weight", "language_model.norm.weight"), 1, tied=True)


def test_unknown_names_are_kept_for_the_loader_to_report():
    weights = target_weights(named("model.language_model.mystery.weight"), 1, tied=True)
    assert weights.keys() == {"model.mystery.weight"}


DRAFTER = {
    "pre_projection.weight": "pre_projection.weight",
    "post_projection.weight": "post_projection.weight",
    "model.embed_tokens.weight": "model.embed_tokens.weight",
    "model.layers.3.self_attn.q_proj.weight": "model.layers.3.self_attn.q_proj.weight",
    "model.norm.weight": "model.norm.weight",
    "masked_embedding.centroids.weight": "masked_embedding.centroids.weight",
}


@pytest.mark.parametrize("prefix", ["", "model.", "model.model.", "language_model.", "assistant.", "a.b."])
def test_drafter_prefixes(prefix):
    weights = drafter_weights(named(*(prefix + name for name in DRAFTER)))
    assert [array.item() for array in map(weights.get, DRAFTER.values())] == list(range(len(DRAFTER)))
    assert weights.keys() == set(DRAFTER.values())


def test_drafter_without_prefixes():
    bare = [name.removeprefix("model.") for name in DRAFTER]
    assert drafter_weights(named(*bare)).keys() == set(DRAFTER.values())


def test_drafter_drops_its_tied_head_and_unused_keys_and_values():
    names = (
        "lm_head.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.k_norm.weight",
    )
    assert drafter_weights(named(*names, "model.norm.weight")).keys() == {"model.norm.weight"}


@pytest.mark.parametrize("dtype", [mx.int64, mx.int32, mx.uint32])
def test_token_ordering_becomes_int32(dtype):
    ordering = mx.array([2, 0, 3, 1], dtype)
    out = drafter_weights({"masked_embedding.token_ordering": ordering})["masked_embedding.token_ordering"]
    assert out.dtype == mx.int32 and out.tolist() == [2, 0, 3, 1]


@pytest.mark.parametrize(
    "ordering",
    [
        mx.array([0, 1, 1, 3]),
        mx.array([1, 2, 3, 4]),
        mx.array([-1, 0, 1, 2]),
        mx.array([0, 1, 2, 2**32 + 3], mx.int64),
        mx.zeros(4, mx.int64),
        mx.array([0.0, 1.0, 2.0, 3.0]),
    ],
)
def test_token_ordering_must_be_a_permutation(ordering):
    with pytest.raises(UserError, match="token_ordering must be a permutation of the token ids 0 … 3"):
        drafter_weights({"masked_embedding.token_ordering": ordering})


def test_a_conversion_by_mlx_lm_has_the_names_of_its_text_model():
    text = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "global_head_dim": 16,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 32,
    }
    model = mlx_lm_gemma4.Model(mlx_lm_gemma4.ModelArgs(text_config=text, vocab_size=32))
    converted = dict(tree_flatten(model.parameters()))
    assert "language_model.model.embed_tokens.weight" in converted
    expected = {name for name, _ in tree_flatten(model.language_model.parameters())}
    assert target_weights(converted, kv_owners=2, tied=True).keys() == expected
