"""E2B and its drafter at their real widths decode: few layers, few tokens, random 4-bit weights, a small vocabulary."""

import mlx.core as mx
import mlx.nn as nn
import pytest

from mtp_mlx import draft_tokens, generate_step
from mtp_mlx.models.config import FULL, SLIDING
from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.gemma4_config import AssistantConfig, TextConfig
from tests.reference.cases import real_config

VOCAB = 8192  # four tokens a cluster; the real one has 128
LAYERS = {"layer_types": [SLIDING, FULL, SLIDING, FULL], "num_hidden_layers": 4, "num_kv_shared_layers": 2}
PROMPT = [2, 818, 5279, 529, 7001]


@pytest.fixture(scope="module")
def target() -> Gemma4:
    mx.random.seed(0)
    config = real_config("gemma-4-e2b") | LAYERS | {"vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB}
    return quantized(Gemma4(TextConfig.from_dict(config)))


@pytest.fixture(scope="module")
def drafter() -> Gemma4Assistant:
    mx.random.seed(1)
    config = real_config("gemma-4-e2b-assistant")
    config["text_config"]["vocab_size"] = VOCAB
    return quantized(Gemma4Assistant(AssistantConfig.from_dict(config)))


def quantized(module: nn.Module) -> nn.Module:
    nn.quantize(
        module,
        group_size=64,
        bits=4,
        class_predicate=lambda path, leaf: isinstance(leaf, nn.Linear | nn.Embedding) and "centroids" not in path,
    )
    for parameter in module.parameters().values():
        mx.eval(parameter)  # part by part, so that little of it exists in float32 at a time
    return module


def test_widths_are_the_real_ones(target, drafter):
    attention = target.layers[1].self_attn
    assert (attention.heads, attention.layer.head_dim, attention.layer.num_key_value_heads) == (8, 512, 1)
    assert target.config.hidden_size == 1536
    assert [layer.intermediate_size for layer in target.config.layers] == [6144, 6144, 12288, 12288]
    assert drafter.pre_projection.weight.shape == (256, 2 * 1536 * 4 // 32)
    assert drafter.masked_embedding.centroids.weight.shape == (2048, 256)


def test_decodes_with_and_without_the_drafter(target, drafter):
    mx.reset_peak_memory()
    plain, drafted = (
        [token for token, _, _ in generate_step(PROMPT, target, draft_model=d, num_draft_tokens=2, max_tokens=5)]
        for d in (None, drafter)
    )
    assert drafted == plain
    assert len(drafted) == 5
    assert mx.get_peak_memory() < 3e9


def test_drafts_are_tokens_of_the_vocabulary(target, drafter):
    first, drafts = draft_tokens(target, drafter, PROMPT, num_draft_tokens=4)
    assert len(drafts) == 4
    assert all(0 <= token < VOCAB for token in [first, *drafts])
