"""Llama configurations: Llama, SmolLM2 and other checkpoints whose model_type is "llama".

Both dialects of position embeddings are understood: `rope_theta` beside `rope_scaling`, as mlx-lm and transformers 4
write them, and `rope_parameters`, as transformers 5 does.
"""

from dataclasses import dataclass, field
from typing import Any

from mtp_mlx.models.config import FULL, DecoderConfig, LayerConfig
from mtp_mlx.models.config_fields import check_heads, check_llama, check_rope, layer_types, require
from mtp_weights.errors import UserError
from mtp_weights.read import stop_ids

TARGET_TYPES = ("llama",)


@dataclass(frozen=True)
class LlamaConfig(DecoderConfig):
    """A Llama target.

    Attributes:
        rope: `rope_type`, `rope_theta`, and what the type needs beside them.
        rope_traditional: whether neighbouring dimensions rotate together, instead of the two halves of a head.
    """

    attention_bias: bool = False
    mlp_bias: bool = False
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10_000.0})
    rope_traditional: bool = False

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> "LlamaConfig":
        """Reads config.json.

        Raises:
            UserError: a field is missing or contradicts another, or this kind of Llama is not supported.
        """
        check_llama(config)
        layers = _layers(config)
        return cls(
            model_type=require(config, "model_type"),
            vocab_size=require(config, "vocab_size"),
            hidden_size=require(config, "hidden_size"),
            num_attention_heads=require(config, "num_attention_heads"),
            sliding_window=require(config, "sliding_window") if any(layer.is_sliding for layer in layers) else None,
            layers=layers,
            rms_norm_eps=config.get("rms_norm_eps") or 1e-6,
            max_position_embeddings=config.get("max_position_embeddings") or 2048,
            tie_word_embeddings=config.get("tie_word_embeddings", False),  # as transformers: checkpoints say when it is
            eos_token_ids=tuple(sorted(stop_ids(config, {}))),
            attention_bias=bool(config.get("attention_bias")),
            mlp_bias=bool(config.get("mlp_bias")),
            rope=_rope(config),
            rope_traditional=bool(config.get("rope_traditional")),
        )

    def position_embeddings(self, layer_type: str) -> dict[str, Any]:
        if self.rope_traditional:
            raise UserError("no drafter can be made for a target with rope_traditional", given=self.model_type)
        return self.rope


def _layers(config: dict[str, Any]) -> tuple[LayerConfig, ...]:
    count, heads = require(config, "num_hidden_layers"), require(config, "num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or heads
    check_heads(heads, kv_heads, 0)
    types = layer_types(config, count) if config.get("layer_types") else [FULL] * count
    head_dim, width = _head_dim(config, heads), require(config, "intermediate_size")
    return tuple(LayerConfig(kind, head_dim, kv_heads, width) for kind in types)


def _head_dim(config: dict[str, Any], heads: int) -> int:
    """As the file says, or what is left of the hidden size for each head."""
    given, hidden_size = config.get("head_dim"), require(config, "hidden_size")
    if given is None and hidden_size % heads:
        raise UserError(
            "hidden_size must be a multiple of num_attention_heads where there is no head_dim",
            given=f"{hidden_size} and {heads}",
            fix="check config.json",
        )
    return given or hidden_size // heads


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    # Older files call the type "type"; both may be there.
    rope_type = scaling.get("rope_type") or scaling.get("type") or "default"
    theta = scaling.get("rope_theta") or config.get("rope_theta") or 10_000.0
    rope = {**scaling, "rope_type": rope_type, "rope_theta": theta}
    rope.pop("type", None)
    check_rope("rope_parameters" if config.get("rope_parameters") else "rope_scaling", rope)
    return rope
