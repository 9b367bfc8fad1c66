"""Gemma 4 configurations, read from a checkpoint's config.json into one resolved form.

Both dialects are understood: `global_head_dim` / `num_global_key_value_heads`, and `per_layer_config` as transformers
5.24 writes it. After `from_dict` nobody else needs to know which one it was: `config.layers[i]` has the answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from mtp_mlx.models.config import FULL, SLIDING, DecoderConfig, LayerConfig
from mtp_mlx.models.config_fields import check_drafter, check_heads, check_outer, check_text, layer_types, require
from mtp_weights.errors import UserError
from mtp_weights.read import stop_ids

TARGET_TYPES = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")
DRAFTER_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")

_DEFAULT_ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


@dataclass(frozen=True)
class TextConfig(DecoderConfig):
    """A Gemma 4 text decoder (target or the inner model of a drafter)."""

    final_logit_softcapping: float | None = None
    vocab_size_per_layer_input: int = 0
    hidden_size_per_layer_input: int = 0
    num_experts: int = 0
    top_k_experts: int = 0
    moe_intermediate_size: int = 0
    rope_parameters: dict[str, dict[str, Any]] = field(default_factory=lambda: _DEFAULT_ROPE)

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> "TextConfig":
        """Reads config.json of a target, text-only or multimodal (its `text_config`).

        Raises:
            UserError: a field is missing or contradicts another.
        """
        check_outer(config)
        inner = config.get("text_config") or {}
        self = _text_config({**config, **inner, "eos_token_id": sorted(stop_ids(config, {}))})
        self._check_owners()
        return self

    def position_embeddings(self, layer_type: str) -> dict[str, Any]:
        return self.rope_parameters[layer_type]

    @property
    def per_layer_width(self) -> int:
        return self.hidden_size_per_layer_input

    def share_of_experts(self, rows: float) -> float:
        return 1 - (1 - self.top_k_experts / self.num_experts) ** rows if self.num_experts else 1.0

    def with_small_tables(self, rows: int) -> "TextConfig":
        return replace(self, vocab_size_per_layer_input=min(self.vocab_size_per_layer_input, rows))

    def _check_owners(self) -> None:
        missing = {layer.layer_type for layer in self.layers} - set(self.kv_types)
        if missing:
            raise UserError(
                f"no layer of type {', '.join(sorted(missing))} has keys and values of its own, to share with others",
                fix="check num_kv_shared_layers and layer_types in config.json",
            )


@dataclass(frozen=True)
class AssistantConfig:
    """A Gemma 4 MTP drafter (`gemma4_assistant`)."""

    text: TextConfig
    backbone_hidden_size: int
    use_ordered_embeddings: bool = False
    num_centroids: int = 0
    centroid_intermediate_top_k: int = 0

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> "AssistantConfig":
        """Reads config.json of a drafter.

        Raises:
            UserError: a field is missing or contradicts another.
        """
        check_drafter(config)
        inner = require(config, "text_config")
        text = _text_config({**inner, "num_kv_shared_layers": require(inner, "num_hidden_layers")})
        ordered = bool(config.get("use_ordered_embeddings", False))
        self = cls(
            text=text,
            backbone_hidden_size=require(config, "backbone_hidden_size"),
            use_ordered_embeddings=ordered,
            num_centroids=require(config, "num_centroids") if ordered else 0,
            centroid_intermediate_top_k=require(config, "centroid_intermediate_top_k") if ordered else 0,
        )
        self._check_clusters()
        return self

    def _check_clusters(self) -> None:
        if not self.use_ordered_embeddings:
            return
        if self.num_centroids < 1 or self.text.vocab_size % self.num_centroids:
            raise UserError(
                "the clustered head needs a vocabulary that num_centroids divides",
                given=f"vocab_size {self.text.vocab_size}, num_centroids {self.num_centroids}",
                fix="check the drafter's config.json",
            )
        if not 1 <= self.centroid_intermediate_top_k <= self.num_centroids:
            raise UserError(
                f"centroid_intermediate_top_k must be between 1 and num_centroids = {self.num_centroids}",
                given=self.centroid_intermediate_top_k,
                fix="check the drafter's config.json",
            )


def _text_config(text: dict[str, Any]) -> TextConfig:
    check_text(text)
    slides = SLIDING in (text.get("layer_types") or ())
    moe = bool(text.get("enable_moe_block", False))
    ple = _ple_width(text)
    return TextConfig(
        model_type=require(text, "model_type"),
        vocab_size=require(text, "vocab_size"),
        hidden_size=require(text, "hidden_size"),
        num_attention_heads=require(text, "num_attention_heads"),
        sliding_window=require(text, "sliding_window") if slides else None,
        layers=_layers(text),
        rms_norm_eps=text.get("rms_norm_eps") or 1e-6,
        max_position_embeddings=text.get("max_position_embeddings") or 131_072,
        tie_word_embeddings=text.get("tie_word_embeddings", True),
        final_logit_softcapping=text.get("final_logit_softcapping"),
        vocab_size_per_layer_input=require(text, "vocab_size_per_layer_input") if ple else 0,
        hidden_size_per_layer_input=ple,
        num_experts=require(text, "num_experts") if moe else 0,
        top_k_experts=require(text, "top_k_experts") if moe else 0,
        moe_intermediate_size=require(text, "moe_intermediate_size") if moe else 0,
        rope_parameters={**_DEFAULT_ROPE, **(text.get("rope_parameters") or {})},
        eos_token_ids=tuple(sorted(stop_ids(text, {}))),
    )


def _ple_width(text: dict[str, Any]) -> int:
    """Width of the per-layer embeddings, 0 where there are none; their table must have a row for every id."""
    width = text.get("hidden_size_per_layer_input") or 0
    if width and require(text, "vocab_size_per_layer_input") < require(text, "vocab_size"):
        raise UserError(
            "vocab_size_per_layer_input must not be less than vocab_size",
            given=f"{text['vocab_size_per_layer_input']} and {text['vocab_size']}",
            fix="check config.json",
        )
    return width


def _layers(text: dict[str, Any]) -> tuple[LayerConfig, ...]:
    count, heads = require(text, "num_hidden_layers"), require(text, "num_attention_heads")
    types = layer_types(text, count)
    shared = text.get("num_kv_shared_layers") or 0
    attention_shape = _attention_shape(text)
    # A drafter shares every layer: its keys and values are the target's.
    wide = bool(text.get("use_double_wide_mlp", False)) and 0 < shared < count
    layers = []
    for i, layer_type in enumerate(types):
        owns_kv = i < count - shared
        head_dim, kv_heads = attention_shape(i, layer_type)
        check_heads(heads, kv_heads, i)
        layers.append(
            LayerConfig(
                layer_type=layer_type,
                head_dim=head_dim,
                num_key_value_heads=kv_heads,
                owns_kv=owns_kv,
                k_eq_v=bool(text.get("attention_k_eq_v", False)) and layer_type == FULL,
                intermediate_size=require(text, "intermediate_size") * (2 if wide and not owns_kv else 1),
            )
        )
    return tuple(layers)


def _attention_shape(text: dict[str, Any]) -> Callable[[int, str], tuple[int, int]]:
    """How this config's dialect gives (head_dim, kv heads) of a layer."""
    head_dim, kv_heads = require(text, "head_dim"), require(text, "num_key_value_heads")
    overrides = text.get("per_layer_config")
    if overrides is not None:

        def by_layer(index: int, _: str) -> tuple[int, int]:
            own = overrides.get(str(index), overrides.get(index, {}))
            return own.get("head_dim", head_dim), own.get("num_key_value_heads", kv_heads)

        return by_layer
    # As transformers and mlx-lm: an absent global_head_dim means 512, null means head_dim.
    global_head_dim = text.get("global_head_dim", 512) or head_dim
    global_kv_heads = text.get("num_global_key_value_heads") or kv_heads
    if not text.get("attention_k_eq_v", False):
        global_kv_heads = kv_heads  # transformers and mlx-lm read the global count only where K = V
    return lambda _, layer_type: (global_head_dim, global_kv_heads) if layer_type == FULL else (head_dim, kv_heads)
