"""Tiny random-weight targets and drafters with the real architectures, small enough to decode in milliseconds.

Weights are drawn by tensor name from a frozen generator and are exact in bfloat16: a checkpoint, a module in memory and
the reference implementation all have the same values, on every machine, and no weights need to be stored. Heads are
untied, or a random model would only repeat its last token.
"""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models import registry
from mtp_mlx.models.config import FULL, SLIDING
from mtp_mlx.models.drafter import Drafter
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant, to_cluster_order
from mtp_mlx.models.gemma4_config import AssistantConfig
from mtp_mlx.models.llama import Llama
from mtp_mlx.models.target import Target

S, F = SLIDING, FULL
Config = dict[str, Any]

_COMMON: Config = {
    "vocab_size": 128,
    "vocab_size_per_layer_input": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,  # where absent, transformers reads False and mlx-lm True
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "final_logit_softcapping": 30.0,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "bos_token_id": 2,
    "eos_token_id": [1, 106],
    "pad_token_id": 0,
}
_K_EQ_V: Config = {"attention_k_eq_v": True, "num_key_value_heads": 2, "num_global_key_value_heads": 1}

# What each size of Gemma 4 has that the others have not, in small.
GEMMA4: dict[str, Config] = {
    "e2b": {
        "model_type": "gemma4_text",
        "layer_types": [S, S, F, S, S, F, S, F],
        "sliding_window": 12,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "use_double_wide_mlp": True,
    },
    "e4b": {
        "model_type": "gemma4_text",
        "layer_types": [S, S, S, F, S, F, S, F],
        "sliding_window": 16,
        "num_kv_shared_layers": 3,
        "hidden_size_per_layer_input": 8,
        "num_key_value_heads": 2,
    },
    "12b": {"model_type": "gemma4_unified_text", "layer_types": [S, S, F, S, F], "sliding_window": 14, **_K_EQ_V},
    "31b": {"model_type": "gemma4_text", "layer_types": [S, S, F, S, S, F], "sliding_window": 20, **_K_EQ_V},
    "26b": {
        "model_type": "gemma4_text",
        "layer_types": [S, S, F, S, F],
        "sliding_window": 24,
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 64,
        **_K_EQ_V,
    },
}

_LLAMA: Config = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "bos_token_id": 2,
    "eos_token_id": [1, 106],
}
# What Llama checkpoints can have.
LLAMA: dict[str, Config] = {
    "llama": {"num_hidden_layers": 4},
    "llama-scaled": {
        "num_hidden_layers": 3,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "attention_bias": True,
        "mlp_bias": True,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama-sliding": {"layer_types": [S, F, S, F], "sliding_window": 12},
}
ARCHITECTURES = GEMMA4 | LLAMA

# Means of norms, and standard deviations of matrices as multiples of fan_in ** -0.5, where they are not 1. Scales are
# free of chaos, which would amplify float32's rounding a thousandfold, yet attention is sharp and logits reach ±15.
_SCALES = {
    "lm_head": 4.0,
    "embed_tokens.": 1.5,
    "q_norm": 0.3,
    "post_per_layer_input_norm": 0.12,
    "post_attention_layernorm": 0.5,
    "post_feedforward_layernorm": 0.5,
}
# Llama has no norms that could make attention sharp: without, a random model soon goes around in a circle.
_LLAMA_SCALES = {".bias": 0.2, "lm_head": 4.0, "q_proj": 4.0, "o_proj": 2.0}


def target_config(architecture: str, **changes: Any) -> Config:
    """config.json of a tiny target, in the dialect with `global_head_dim`."""
    if architecture in LLAMA:
        config = {**_LLAMA, **LLAMA[architecture], **changes}
        return {"num_hidden_layers": len(config.get("layer_types", ())), **config}
    config = {**_COMMON, **GEMMA4[architecture], **changes}
    return {**config, "num_hidden_layers": len(config["layer_types"])}


def drafter_config(target: Config, *, clustered: bool, **changes: Any) -> Config:
    """config.json of a tiny drafter for `target`; `changes` go to its text_config."""
    if target["model_type"] == "llama":
        target = _as_drafters_see_it(target)
    unified = target["model_type"] == "gemma4_unified_text"
    layer_types = [kind for kind in (S, S, F) if kind in target["layer_types"]]
    inherited = (
        *("vocab_size", "sliding_window", "head_dim", "global_head_dim", "num_key_value_heads"),
        *("max_position_embeddings", "rms_norm_eps", "hidden_activation", "bos_token_id", "pad_token_id"),
        "rope_parameters",
    )
    text = {
        "model_type": target["model_type"],
        "hidden_size": 64,
        "intermediate_size": 64,
        "layer_types": layer_types,
        "num_hidden_layers": len(layer_types),
        "num_kv_shared_layers": len(layer_types),
        "num_attention_heads": 4,
        "num_global_key_value_heads": target.get("num_global_key_value_heads"),
        "attention_k_eq_v": target.get("attention_k_eq_v", False),
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "tie_word_embeddings": True,
        **{name: target[name] for name in inherited if name in target},
        **changes,
    }
    return {
        "model_type": "gemma4_unified_assistant" if unified else "gemma4_assistant",
        "backbone_hidden_size": target["hidden_size"],
        "tie_word_embeddings": True,
        "use_ordered_embeddings": clustered,
        "num_centroids": 16,
        "centroid_intermediate_top_k": 4,
        "text_config": text,
    }


def _as_drafters_see_it(target: Config) -> Config:
    """A Llama target's config in the words of Gemma 4's, as far as a drafter's text_config repeats it."""
    config = registry.target_config(target)
    layer = config.layers[0]
    return {
        **target,
        "model_type": "gemma4_text",
        "layer_types": [layer.layer_type for layer in config.layers],
        "head_dim": layer.head_dim,
        "global_head_dim": layer.head_dim,
        "num_key_value_heads": layer.num_key_value_heads,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_parameters": dict.fromkeys((S, F), config.rope),
    }


def random_weights(module: nn.Module, seed: int = 0) -> dict[str, mx.array]:
    """Weights for every parameter of `module` as a checkpoint has them, float32 and exact in bfloat16."""
    parameters = tree_flatten(module.parameters(), destination={})
    scales = _LLAMA_SCALES if isinstance(module, Llama) else _SCALES
    return {name: _random(name, array.shape, seed, scales) for name, array in parameters.items()}


def build_target(config: Config, seed: int = 0) -> Target:
    model = registry.new_target(registry.target_config(config))
    return _with_weights(model, random_weights(model, seed))


def build_drafter(config: Config, seed: int = 1, draft_position: str = "next") -> Gemma4Assistant:
    drafter = Gemma4Assistant(AssistantConfig.from_dict(config), draft_position)
    return _with_weights(drafter, to_cluster_order(random_weights(drafter, seed)))


class ScriptedDrafter(Drafter):
    """Proposes from a known continuation, so that a test decides which drafts are right.

    Args:
        ids: the prompt and the target's continuation of it.
        wrong: whether the proposal for each position of `ids` shall be wrong: one for all, or one each.
        vocab_size: of the target.
    """

    def __init__(self, ids: Sequence[int], wrong: bool | Sequence[bool], vocab_size: int):
        super().__init__()
        self.proposals = (mx.array(ids) + mx.array(wrong).astype(mx.int32)) % vocab_size

    def draft(
        self, target: Target, cache: KVCache, token: mx.array, hidden: mx.array, num_tokens: int, pick: Any = None
    ) -> mx.array:
        """As `Gemma4Assistant.draft`, with certainty; past the end of the script it repeats the last proposal."""
        positions = cache.lengths[:, None] + 1 + mx.arange(num_tokens)
        return self.proposals[mx.minimum(positions, self.proposals.size - 1)]


def write_checkpoint(folder: Path, config: Config, weights: dict[str, mx.array]) -> Path:
    """Writes config.json and model.safetensors (bfloat16 where the arrays are float32) into a new `folder`."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    half = {name: array.astype(mx.bfloat16) if array.dtype == mx.float32 else array for name, array in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), half, metadata={"format": "pt"})
    return folder


def hugging_face_names(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Canonical names -> those of Hugging Face's text-only checkpoints: the experts' projections fused."""
    fused = {}
    for name, array in weights.items():
        base = name.split(".switch_glu.")[0]
        if name.endswith("switch_glu.gate_proj.weight"):
            fused[f"{base}.gate_up_proj"] = mx.concatenate(
                [array, weights[name.replace("gate_proj", "up_proj")]], axis=1
            )
        elif name.endswith("switch_glu.down_proj.weight"):
            fused[f"{base}.down_proj"] = array
        elif not name.endswith("switch_glu.up_proj.weight"):
            fused[name] = array
    return fused


def multimodal(config: Config, weights: dict[str, mx.array]) -> tuple[Config, dict[str, mx.array]]:
    """A text checkpoint as mlx-lm writes the text part of a multimodal one."""
    outer = {
        "model_type": config["model_type"].removesuffix("_text"),
        "text_config": config,
        "vocab_size": config["vocab_size"],
        "eos_token_id": config["eos_token_id"],
    }
    return outer, {f"language_model.{name}": array for name, array in weights.items()}


def write_target(folder: Path, config: Config, seed: int = 0) -> Path:
    """A target's checkpoint folder as Hugging Face has it, without a tokenizer."""
    weights = random_weights(registry.new_target(registry.target_config(config)), seed)
    return write_checkpoint(folder, config, hugging_face_names(weights))


def write_drafter(folder: Path, config: Config, seed: int = 1) -> Path:
    """A drafter's checkpoint folder as Hugging Face has it."""
    weights = random_weights(Gemma4Assistant(AssistantConfig.from_dict(config)), seed)
    if config["use_ordered_embeddings"]:
        ordering = "masked_embedding.token_ordering"
        weights[ordering] = weights[ordering].astype(mx.int64)
    return write_checkpoint(folder, config, weights)


def _with_weights(module: nn.Module, weights: dict[str, mx.array]) -> Any:
    module.load_weights(list(weights.items()))
    module.eval()
    mx.eval(module.parameters())
    return module


def _random(name: str, shape: tuple[int, ...], seed: int, scales: dict[str, float]) -> mx.array:
    # RandomState's streams are frozen by numpy's policy; those of its newer Generator are not.
    random = np.random.RandomState(zlib.crc32(f"{seed}/{name}".encode()))
    if name.endswith("token_ordering"):
        return mx.array(random.permutation(shape[0]).astype(np.int32))
    scale = next((scale for part, scale in scales.items() if part in name), 1.0)
    values = random.standard_normal(shape)
    if name.endswith(".bias"):
        return _bfloat16_exact(scale * values)
    return _bfloat16_exact(scale * (1 + 0.2 * values if len(shape) == 1 else shape[-1] ** -0.5 * values))


def _bfloat16_exact(values: np.ndarray) -> mx.array:
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return mx.array(bits.view(np.float32))
