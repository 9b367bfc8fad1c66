"""A text-only pair as the multimodal checkpoint that mlx-vlm's MTP needs.

mlx-vlm 0.7.10 drafts only for its multimodal `gemma4`, not for its text-only wrapper, and reads `global_head_dim`, not
`per_layer_config`. So the target gets a tiny random vision tower, which text never passes through, and both get every
field of their configuration spelled out, because mlx-vlm's defaults are E2B's. Weights are written in float32.
"""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_vlm.models.gemma4.config import ModelConfig, VisionConfig
from mlx_vlm.models.gemma4.config import TextConfig as VlmTextConfig
from mlx_vlm.models.gemma4.gemma4 import Model

from mtp_mlx.models.config import FULL, SLIDING
from mtp_mlx.models.gemma4_config import AssistantConfig, TextConfig
from mtp_weights.layout import drafter_weights, target_weights
from mtp_weights.read import read_config, read_weights

TINY_VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 16,
    "position_embedding_size": 16,
}
TEXT_PREFIX = "language_model."


def write_pair(target: Path, drafter: Path, folder: Path) -> tuple[Path, Path]:
    """Writes both into new folders within `folder`; returns those of the target and the drafter."""
    return _write_target(target, folder / "target"), _write_drafter(drafter, folder / "drafter")


def _write_target(source: Path, folder: Path) -> Path:
    raw = read_config(source)
    config = TextConfig.from_dict(raw)
    text = _text_config(raw.get("text_config", raw), config)
    # Ids of images and sounds that no text contains: one past the vocabulary.
    beyond = dict.fromkeys(("image_token_id", "audio_token_id", "boi_token_id", "eoi_token_id"), config.vocab_size)
    outer = {"model_type": "gemma4", "text_config": text, "vision_config": TINY_VISION, "audio_config": None, **beyond}
    weights = target_weights(read_weights(source), len(config.kv_owners), config.tie_word_embeddings)
    named = {TEXT_PREFIX + name: array for name, array in weights.items()}
    return _write(folder, outer, _vision_weights(text) | named)


def _write_drafter(source: Path, folder: Path) -> Path:
    raw = read_config(source)
    text = _text_config(raw["text_config"], AssistantConfig.from_dict(raw).text)
    return _write(folder, {**raw, "text_config": text}, drafter_weights(read_weights(source)))


def _text_config(raw: dict[str, Any], config: TextConfig) -> dict[str, Any]:
    """`raw` in the dialect with `global_head_dim`, with the fields whose defaults differ given."""
    layers = {layer.layer_type: layer for layer in config.layers}
    owners = config.kv_owners
    return {
        "enable_moe_block": False,
        "attention_k_eq_v": False,
        "use_double_wide_mlp": False,
        **raw,
        "model_type": "gemma4_text",
        "head_dim": layers[SLIDING].head_dim,
        "global_head_dim": layers[FULL].head_dim,
        "num_key_value_heads": layers[SLIDING].num_key_value_heads,
        "num_kv_shared_layers": len(config.layers) - len(owners),
        "hidden_size_per_layer_input": config.hidden_size_per_layer_input,
        "rope_parameters": config.rope_parameters,
    }


def _vision_weights(text: dict[str, Any]) -> dict[str, mx.array]:
    """Whatever mlx-vlm's model has beside its text decoder, at its random initial values."""
    config = ModelConfig(
        text_config=VlmTextConfig.from_dict(text), vision_config=VisionConfig.from_dict(TINY_VISION), audio_config=None
    )
    parameters = tree_flatten(Model(config).parameters())
    return {name: array for name, array in parameters if not name.startswith(TEXT_PREFIX)}


def _write(folder: Path, config: dict[str, Any], weights: dict[str, mx.array]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    floats = (mx.bfloat16, mx.float16)
    weights = {name: array.astype(mx.float32) if array.dtype in floats else array for name, array in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return folder
