"""Every layout in which checkpoints come loads to the same arrays; whatever is missing or damaged is named."""

import json
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mtp_mlx import load, load_drafter, load_model
from mtp_mlx.errors import UserError
from mtp_mlx.models import registry
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant, to_vocabulary_order
from mtp_mlx.models.gemma4_config import AssistantConfig
from tests.reference.cases import HEADS, TOLERANCE, case, gap, saved_config
from tests.reference.names import WITH_GOLDENS
from tests.tiny import (
    ARCHITECTURES,
    GEMMA4,
    Config,
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
from tests.tiny_tokenizer import write_tokenizer

Weights = dict[str, mx.array]


def target_weights(config: Config) -> Weights:
    return random_weights(registry.new_target(registry.target_config(config)))


def drafter_weights(config: Config) -> Weights:
    return random_weights(Gemma4Assistant(AssistantConfig.from_dict(config)), seed=1)


def assert_holds(module, expected: Weights) -> None:
    parameters = to_vocabulary_order(tree_flatten(module.parameters(), destination={}))
    assert parameters.keys() == expected.keys()
    assert all(mx.array_equal(array, expected[name]) for name, array in parameters.items())


def prefixed(replacement: str) -> Callable[[Weights], Weights]:
    return lambda weights: {name.replace("model.", replacement, 1): array for name, array in weights.items()}


LAYOUTS = {
    "Hugging Face, text only": prefixed("model."),
    "Hugging Face, multimodal": prefixed("model.language_model."),
    "mlx-vlm": prefixed("language_model.model."),
    "doubled": prefixed("model.model."),
    "tripled": prefixed("model.language_model.model."),
    "bare": prefixed(""),
    "torch.compile": lambda weights: {f"_orig_mod.{name}": array for name, array in weights.items()},
    "everything wrapped": lambda weights: {f"language_model.{name}": array for name, array in weights.items()},
}
TOWERS = [
    *("vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight", "audio_tower.layers.0.norm.weight"),
    *("embed_vision.embedding_projection.weight", "embed_audio.embedding_projection.weight"),
    *("multi_modal_projector.weight", "vision_embedder.patch_dense.weight"),
]


class TestTargetLayouts:
    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("name", ["e2b", "26b"])
    def test_prefixes(self, name, layout, tmp_path):
        config = target_config(name)
        weights = target_weights(config)
        folder = write_checkpoint(tmp_path / "target", config, LAYOUTS[layout](hugging_face_names(weights)))
        assert_holds(load_model(folder)[0], weights)

    @pytest.mark.parametrize("name", GEMMA4)
    def test_multimodal_config_and_mlx_lm_names(self, name, tmp_path):
        config = target_config(name)
        weights = target_weights(config)
        model, outer = load_model(write_checkpoint(tmp_path / "target", *multimodal(config, weights)))
        assert_holds(model, weights)
        assert "text_config" in outer

    @pytest.mark.parametrize("prefix", ["", "model."])
    def test_towers_are_left_out(self, prefix, tmp_path):
        config = target_config("e2b")
        weights = target_weights(config)
        towers = {prefix + name: mx.ones((3,)) for name in TOWERS}
        folder = write_checkpoint(tmp_path / "target", config, prefixed("model.language_model.")(weights) | towers)
        assert_holds(load_model(folder)[0], weights)

    def test_unused_keys_and_values_of_shared_layers(self, tmp_path):
        config = target_config("e2b")
        weights = target_weights(config)
        unused = {
            f"model.layers.{layer}.self_attn.{part}.weight": mx.ones((4, 64))
            for layer in (6, 7)
            for part in ("k_proj", "v_proj", "k_norm", "v_norm")
        }
        assert_holds(load_model(write_checkpoint(tmp_path / "target", config, weights | unused))[0], weights)

    def test_rotary_buffers_are_left_out(self, tmp_path):
        config = target_config("e2b")
        weights = target_weights(config)
        buffers = {"model.layers.0.self_attn.rotary_emb.inv_freq": mx.ones((8,))}
        assert_holds(load_model(write_checkpoint(tmp_path / "target", config, weights | buffers))[0], weights)

    def test_tied_head_in_the_file(self, tmp_path):
        config = target_config("e2b", tie_word_embeddings=True)
        weights = target_weights(config)
        assert "lm_head.weight" not in weights
        head = {"lm_head.weight": weights["model.embed_tokens.weight"]}
        assert_holds(load_model(write_checkpoint(tmp_path / "target", config, weights | head))[0], weights)

    @pytest.mark.parametrize("index", [True, False])
    def test_shards(self, index, tmp_path):
        config = target_config("e2b")
        weights = target_weights(config)
        folder = write_checkpoint(tmp_path / "target", config, weights)
        split_into_shards(folder, index)
        assert_holds(load_model(folder)[0], weights)

    @pytest.mark.parametrize("name", WITH_GOLDENS)
    def test_config_as_transformers_writes_it(self, name, tmp_path):
        weights = hugging_face_names(target_weights(target_config(name)))
        model, _ = load_model(write_checkpoint(tmp_path / "target", saved_config(name), weights))
        golden = case(name).golden
        assert gap(model(golden["ids"][None])[0], golden["logits"]) < TOLERANCE


def split_into_shards(folder: Path, index: bool) -> None:
    weights = mx.load(str(folder / "model.safetensors"))
    names, shards = sorted(weights), {}
    for number in range(3):
        file = f"model-{number + 1:05}-of-00003.safetensors"
        shards |= dict.fromkeys(names[number::3], file)
        mx.save_safetensors(str(folder / file), {name: weights[name] for name in names[number::3]})
    (folder / "model.safetensors").unlink()
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


class TestDrafterLayouts:
    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("head", HEADS)
    def test_prefixes(self, head, layout, tmp_path):
        config = drafter_config(target_config("e2b"), clustered=head == "clustered")
        weights = drafter_weights(config)
        folder = write_checkpoint(tmp_path / "drafter", config, LAYOUTS[layout](weights))
        assert_holds(load_drafter(folder, case("e2b").target), weights)

    def test_tied_head_in_the_file(self, tmp_path):
        config = drafter_config(target_config("e2b"), clustered=True)
        weights = drafter_weights(config)
        head = {"lm_head.weight": weights["model.embed_tokens.weight"]}
        folder = write_checkpoint(tmp_path / "drafter", config, weights | head)
        assert_holds(load_drafter(folder, case("e2b").target), weights)

    def test_token_ordering_comes_as_int64(self, tmp_path):
        config = drafter_config(target_config("e2b"), clustered=True)
        folder = write_drafter(tmp_path / "drafter", config)
        stored = mx.load(str(folder / "model.safetensors"))["masked_embedding.token_ordering"]
        loaded = load_drafter(folder, case("e2b").target).masked_embedding.token_ordering
        assert (stored.dtype, loaded.dtype) == (mx.int64, mx.int32)
        assert mx.array_equal(stored, loaded)

    @pytest.mark.parametrize("name", WITH_GOLDENS)
    @pytest.mark.parametrize("head", HEADS)
    def test_config_as_transformers_writes_it(self, name, head, tmp_path):
        weights = drafter_weights(drafter_config(target_config(name), clustered=head == "clustered"))
        folder = write_checkpoint(tmp_path / "drafter", saved_config(f"{name}-{head}"), weights)
        assert_holds(load_drafter(folder, case(name).target), weights)


class TestWhatIsWrong:
    """Nothing stays at its initial value, and no drafter is left out in silence: each of these is an error."""

    def drafter_error(self, folder: Path) -> str:
        with pytest.raises(UserError) as error:
            load_drafter(folder, case("e2b").target)
        assert "\n" not in str(error.value)
        return str(error.value)

    @pytest.mark.parametrize("name", ARCHITECTURES)
    def test_every_missing_tensor_of_a_target_is_named(self, name, tmp_path):
        config = target_config(name)
        weights = target_weights(config)
        write_checkpoint(tmp_path / "target", config, weights)
        for missing in weights:
            rest = {other: array for other, array in weights.items() if other != missing}
            mx.save_safetensors(str(tmp_path / "target/model.safetensors"), rest)
            with pytest.raises(UserError, match=rf"the checkpoint lacks 1 tensors: {missing}; download"):
                load_model(tmp_path / "target")

    @pytest.mark.parametrize("head", HEADS)
    def test_every_missing_tensor_of_a_drafter_is_named(self, head, tmp_path):
        config = drafter_config(target_config("e2b"), clustered=head == "clustered")
        weights = drafter_weights(config)
        write_checkpoint(tmp_path / "drafter", config, weights)
        for missing in weights:
            rest = {other: array for other, array in weights.items() if other != missing}
            mx.save_safetensors(str(tmp_path / "drafter/model.safetensors"), rest)
            assert f"the checkpoint lacks 1 tensors: {missing}; download" in self.drafter_error(tmp_path / "drafter")

    def test_tensor_that_the_config_does_not_describe(self, tmp_path):
        config = target_config("31b")
        extra = {"model.layers.2.self_attn.v_proj.weight": mx.ones((32, 64))}  # a layer where keys are values
        folder = write_checkpoint(tmp_path / "target", config, target_weights(config) | extra)
        with pytest.raises(UserError, match="config.json does not describe: model.layers.2.self_attn.v_proj.weight"):
            load_model(folder)

    def test_tensor_of_another_shape(self, tmp_path):
        config = target_config("e2b")
        folder = write_checkpoint(tmp_path / "target", config | {"intermediate_size": 96}, target_weights(config))
        with pytest.raises(UserError, match=r"mlp.* must have the shape \(.*96.*\) \(given: \(.*128.*\)\)"):
            load_model(folder)

    def test_truncated_drafter(self, tmp_path):
        folder = write_drafter(tmp_path / "drafter", drafter_config(target_config("e2b"), clustered=True))
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        assert "the weight file is truncated" in self.drafter_error(folder)

    def test_missing_shard(self, tmp_path):
        folder = write_target(tmp_path / "target", target_config("e2b"))
        split_into_shards(folder, index=True)
        (folder / "model-00002-of-00003.safetensors").unlink()
        with pytest.raises(UserError, match="model-00002-of-00003.safetensors"):
            load_model(folder)

    def test_token_ordering_that_is_no_permutation(self, tmp_path):
        config = drafter_config(target_config("e2b"), clustered=True)
        weights = drafter_weights(config)
        ordering = weights["masked_embedding.token_ordering"]
        weights["masked_embedding.token_ordering"] = mx.where(ordering == 5, 6, ordering)
        folder = write_checkpoint(tmp_path / "drafter", config, weights)
        assert "token_ordering must be a permutation of the token ids 0 … 127" in self.drafter_error(folder)

    def test_folder_without_config(self, tmp_path):
        assert "a checkpoint folder needs a config.json" in self.drafter_error(tmp_path)

    def test_config_that_is_not_json(self, tmp_path):
        (tmp_path / "config.json").write_text("{")
        assert "config.json is not valid JSON" in self.drafter_error(tmp_path)


class TestTokenizer:
    config = target_config("e2b", vocab_size=384, vocab_size_per_layer_input=384)

    def test_stop_ids_are_those_of_all_files(self, tmp_path):
        folder = write_tokenizer(write_target(tmp_path / "target", self.config))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 106, 50]}))
        model, tokenizer = load(folder)
        assert tokenizer.eos_token_ids == {1, 106, 50}
        assert (model.path, model.name) == (folder, str(folder))

    def test_folder_without_one(self, tmp_path):
        with pytest.raises(UserError, match="no tokenizer.json in the model folder"):
            load(write_target(tmp_path / "target", self.config))


def test_weights_are_float32_on_the_cpu(tmp_path):
    config = target_config("e2b")
    folder = write_target(tmp_path / "target", config)
    assert mx.load(str(folder / "model.safetensors"))["model.norm.weight"].dtype == mx.bfloat16
    model, _ = load_model(folder)
    assert {array.dtype for _, array in tree_flatten(model.parameters())} == {mx.float32}
    assert_holds(model, tree_flatten(build_target(config).parameters(), destination={}))
