"""A model that mlx-lm has loaded is a target too: over the same arrays, quantized or with adapters."""

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import gpt2
from mlx_lm.tuner.lora import LoRALinear
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_model as mlx_lm_load_model
from mlx_lm.utils import quantize_model

from mtp_mlx import as_target, draft_tokens, generate_step, load_drafter, load_model, stream_generate
from mtp_mlx.errors import UserError
from tests.reference.cases import TOLERANCE, case, gap
from tests.reference.names import WITH_GOLDENS
from tests.tiny import (
    GEMMA4,
    LLAMA,
    build_drafter,
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

IDS = mx.array([case("e2b").ids])


def write(folder: Path, name: str, is_multimodal: bool) -> Path:
    config = target_config(name)
    weights = random_weights(build_target(config))
    checkpoint = multimodal(config, weights) if is_multimodal else (config, hugging_face_names(weights))
    return write_checkpoint(folder, *checkpoint)


def loaded_by_mlx_lm(folder: Path) -> nn.Module:
    model, _ = mlx_lm_load_model(folder, lazy=True)
    model.set_dtype(mx.float32)
    return model


def assert_shares_arrays(ours: nn.Module, theirs: nn.Module) -> None:
    own = tree_flatten(ours.parameters(), destination={})
    source = tree_flatten(theirs.parameters(), destination={})
    assert own.keys() == source.keys()
    assert all(array is source[name] for name, array in own.items())


# mlx-lm knows the 12B's text model only inside its multimodal one.
FORMS = [(name, is_multimodal) for name in GEMMA4 for is_multimodal in (False, True)]
FORMS.remove(("12b", False))
FORMS += [(name, False) for name in LLAMA]


@pytest.mark.parametrize(("name", "is_multimodal"), FORMS)
def test_same_arrays_and_the_same_logits(name, is_multimodal, tmp_path):
    theirs = loaded_by_mlx_lm(write(tmp_path / "target", name, is_multimodal))
    ours = as_target(theirs)
    assert_shares_arrays(ours, theirs.language_model if is_multimodal else theirs)
    assert ours.config.layers == build_target(target_config(name)).config.layers
    assert gap(ours(IDS), theirs(IDS)) < TOLERANCE
    if name in WITH_GOLDENS:
        golden = case(name).golden
        assert gap(ours(golden["ids"][None])[0], golden["logits"]) < TOLERANCE


@pytest.mark.parametrize("name", LLAMA)
def test_a_llama_whose_head_is_its_embedding(name, tmp_path):
    config = target_config(name, tie_word_embeddings=True)
    folder = write_target(tmp_path / "target", config)
    theirs, (ours, _) = loaded_by_mlx_lm(folder), load_model(folder)
    assert gap(ours(IDS), theirs(IDS)) < TOLERANCE
    assert gap(as_target(theirs)(IDS), theirs(IDS)) < TOLERANCE


def test_adopting_takes_no_memory(tmp_path):
    theirs = loaded_by_mlx_lm(write(tmp_path / "target", "e2b", is_multimodal=False))
    mx.eval(theirs.parameters())
    before = mx.get_active_memory()
    ours = as_target(theirs)
    mx.eval(ours.parameters())
    # Besides its own rotary frequencies, which mlx-lm's model has unevaluated.
    full = [layer.self_attn for layer in ours.layers if not layer.self_attn.layer.is_sliding]
    frequencies = sum(attention.rope._freqs.nbytes for attention in full)
    assert mx.get_active_memory() == before + frequencies
    assert frequencies == len(full) * 4 * full[0].layer.head_dim // 2


@pytest.mark.parametrize("name", ["e2b", "26b", "llama"])
def test_quantized(name, tmp_path):
    theirs = loaded_by_mlx_lm(write(tmp_path / "target", name, is_multimodal=False))
    theirs, _ = quantize_model(theirs, target_config(name), group_size=64, bits=4)
    ours = as_target(theirs)
    assert_shares_arrays(ours, theirs)
    assert type(ours.layers[0].self_attn.q_proj) is nn.QuantizedLinear
    assert gap(ours(IDS), theirs(IDS)) < TOLERANCE


@pytest.mark.parametrize("bits", [None, 4])
def test_lora(bits, tmp_path):
    theirs = loaded_by_mlx_lm(write(tmp_path / "target", "e2b", is_multimodal=False))
    if bits is not None:
        theirs, _ = quantize_model(theirs, target_config("e2b"), group_size=64, bits=bits)
    plain = theirs(IDS)
    mx.random.seed(0)
    keys = ["self_attn.q_proj", "mlp.down_proj"]
    linear_to_lora_layers(theirs, 8, {"rank": 4, "scale": 2.0, "dropout": 0.0, "keys": keys})
    for module in theirs.modules():
        if isinstance(module, LoRALinear):
            module.lora_b = 0.1 * mx.random.normal(module.lora_b.shape)
    ours = as_target(theirs)
    assert_shares_arrays(ours, theirs)
    assert type(ours.layers[3].mlp.down_proj) is LoRALinear
    assert gap(theirs(IDS), plain) > 1000 * TOLERANCE
    assert gap(ours(IDS), theirs(IDS)) < TOLERANCE


def test_drafts_and_tokens_are_those_of_our_own_target(tmp_path):
    theirs = loaded_by_mlx_lm(write(tmp_path / "target", "e2b", is_multimodal=True))
    drafter = build_drafter(drafter_config(target_config("e2b"), clustered=True))
    golden, ids = case("e2b").golden, case("e2b").ids
    assert draft_tokens(theirs, drafter, ids, 5)[1] == golden["clustered.tokens"][-1, 1:].tolist()
    steps = generate_step(ids[:20], theirs, draft_model=drafter, num_draft_tokens=3, max_tokens=24)
    assert [token for token, _, _ in steps] == golden["greedy"][:24].tolist()


def test_model_and_tokenizer_of_mlx_lm_load(tmp_path):
    config = target_config("e2b", vocab_size=384, vocab_size_per_layer_input=384)
    model, tokenizer = mlx_lm.load(str(write_tokenizer(write_target(tmp_path / "target", config))))
    model.set_dtype(mx.float32)
    drafter = load_drafter(write_drafter(tmp_path / "drafter", drafter_config(config, clustered=True)), model)
    replies = [
        list(stream_generate(model, tokenizer, "the other", max_tokens=24, draft_model=draft_model))
        for draft_model in (None, drafter)
    ]
    tokens = [[response.token for response in reply] for reply in replies]
    assert tokens[0] == tokens[1]
    assert replies[1][-1].speculation.drafted > 0


def test_our_own_target_is_taken_as_it_is():
    target = case("e2b").target
    assert as_target(target) is target


def test_another_model_is_refused():
    args = gpt2.ModelArgs("gpt2", 32, 8, 2, 1, 32, 1e-5, 32)
    message = "the model must be a target of mtp's or mlx-lm's .given: mlx_lm.models.gpt2.Model.; load it with mtp_mlx"
    with pytest.raises(UserError, match=message):
        as_target(gpt2.Model(args))
