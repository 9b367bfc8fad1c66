"""Gemma 4 configurations, read from a checkpoint's config.json into one resolved form.

Both dialects are understood: `global_head_dim` / `num_global_key_value_heads`, and `per_layer_config` as transformers
5.24 writes it. After `from_dict` nobody else needs to know which one it was: `config.layers[i]` has the answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mtp_mlx.models.config_fields import check_drafter, check_outer, check_text
from mtp_weights.errors import UserError
from mtp_weights.read import stop_ids

SLIDING, FULL = "sliding_attention", "full_attention"
TARGET_TYPES = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")
DRAFTER_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")

_DEFAULT_ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


@dataclass(frozen=True)
class LayerConfig:
    """One decoder layer, resolved."""

    layer_type: str
    head_dim: int
    num_key_value_heads: int
    owns_kv: bool
    k_eq_v: bool
    intermediate_size: int

    @property
    def is_sliding(self) -> bool:
        return self.layer_type == SLIDING


@dataclass(frozen=True)
class TextConfig:
    """A Gemma 4 text decoder (target or the inner model of a drafter)."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    sliding_window: int
    layers: tuple[LayerConfig, ...]
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 131_072
    tie_word_embeddings: bool = True
    final_logit_softcapping: float | None = None
    vocab_size_per_layer_input: int = 0
    hidden_size_per_layer_input: int = 0
    num_experts: int = 0
    top_k_experts: int = 0
    moe_intermediate_size: int = 0
    rope_parameters: dict[str, dict[str, Any]] = field(default_factory=lambda: _DEFAULT_ROPE)
    eos_token_ids: tuple[int, ...] = ()

    @property
    def kv_owners(self) -> tuple[int, ...]:
        """Indices of the layers that write keys and values of their own."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.owns_kv)

    def last_owner(self, layer_type: str) -> int:
        """The layer whose keys and values the KV-shared layers and the drafter read."""
        return max(i for i in self.kv_owners if self.layers[i].layer_type == layer_type)

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> "TextConfig":
        """Reads config.json of a target, text-only or multimodal (its `text_config`).

        Raises:
            UserError: not a Gemma 4 target, or a field is missing or contradicts another.
        """
        check_model_type(config, TARGET_TYPES, "target")
        check_outer(config)
        inner = config.get("text_config") or {}
        self = _text_config({**config, **inner, "eos_token_id": sorted(stop_ids(config, {}))})
        self._check_owners()
        return self

    def _check_owners(self) -> None:
        missing = {SLIDING, FULL} - {self.layers[i].layer_type for i in self.kv_owners}
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
            UserError: not a Gemma 4 drafter, or a field is missing or contradicts another.
        """
        check_model_type(config, DRAFTER_TYPES, "drafter")
        check_drafter(config)
        inner = _require(config, "text_config")
        text = _text_config({**inner, "num_kv_shared_layers": _require(inner, "num_hidden_layers")})
        ordered = bool(config.get("use_ordered_embeddings", False))
        self = cls(
            text=text,
            backbone_hidden_size=_require(config, "backbone_hidden_size"),
            use_ordered_embeddings=ordered,
            num_centroids=_require(config, "num_centroids") if ordered else 0,
            centroid_intermediate_top_k=_require(config, "centroid_intermediate_top_k") if ordered else 0,
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


def check_model_type(config: dict[str, Any], known: tuple[str, ...], role: str) -> None:
    """Raises a UserError unless `config["model_type"]` is one of `known`."""
    given = config.get("model_type")
    if given in known:
        return
    if given in DRAFTER_TYPES:
        fix = "this is a drafter: pass it as the draft model, beside its target"
    elif given in TARGET_TYPES:
        fix = "this is a target: pass its assistant (…-it-assistant) as the draft model"
    else:
        fix = f"supported model types: {', '.join(known)}"
    raise UserError(f"not a Gemma 4 {role}", given=f"model_type {given!r}", fix=fix)


def _require(config: dict[str, Any], name: str) -> Any:
    value = config.get(name)
    if value is None:
        raise UserError(f"config.json lacks {name!r}", fix="use an unmodified Gemma 4 config.json")
    return value


def _text_config(text: dict[str, Any]) -> TextConfig:
    check_text(text)
    moe = bool(text.get("enable_moe_block", False))
    ple = _ple_width(text)
    return TextConfig(
        model_type=_require(text, "model_type"),
        vocab_size=_require(text, "vocab_size"),
        hidden_size=_require(text, "hidden_size"),
        num_attention_heads=_require(text, "num_attention_heads"),
        sliding_window=_require(text, "sliding_window"),
        layers=_layers(text),
        rms_norm_eps=text.get("rms_norm_eps") or 1e-6,
        max_position_embeddings=text.get("max_position_embeddings") or 131_072,
        tie_word_embeddings=text.get("tie_word_embeddings", True),
        final_logit_softcapping=text.get("final_logit_softcapping"),
        vocab_size_per_layer_input=_require(text, "vocab_size_per_layer_input") if ple else 0,
        hidden_size_per_layer_input=ple,
        num_experts=_require(text, "num_experts") if moe else 0,
        top_k_experts=_require(text, "top_k_experts") if moe else 0,
        moe_intermediate_size=_require(text, "moe_intermediate_size") if moe else 0,
        rope_parameters={**_DEFAULT_ROPE, **(text.get("rope_parameters") or {})},
        eos_token_ids=tuple(sorted(stop_ids(text, {}))),
    )


def _ple_width(text: dict[str, Any]) -> int:
    """Width of the per-layer embeddings, 0 where there are none; their table must have a row for every id."""
    width = text.get("hidden_size_per_layer_input") or 0
    if width and _require(text, "vocab_size_per_layer_input") < _require(text, "vocab_size"):
        raise UserError(
            "vocab_size_per_layer_input must not be less than vocab_size",
            given=f"{text['vocab_size_per_layer_input']} and {text['vocab_size']}",
            fix="check config.json",
        )
    return width


def _layers(text: dict[str, Any]) -> tuple[LayerConfig, ...]:
    count, heads = _require(text, "num_hidden_layers"), _require(text, "num_attention_heads")
    types = _layer_types(text, count)
    shared = text.get("num_kv_shared_layers") or 0
    attention_shape = _attention_shape(text)
    # A drafter shares every layer: its keys and values are the target's.
    wide = bool(text.get("use_double_wide_mlp", False)) and 0 < shared < count
    layers = []
    for i, layer_type in enumerate(types):
        owns_kv = i < count - shared
        head_dim, kv_heads = attention_shape(i, layer_type)
        if heads % kv_heads:
            raise UserError(
                f"num_attention_heads must be a multiple of the key-value heads, in layer {i} too",
                given=f"{heads} and {kv_heads}",
                fix="check config.json",
            )
        layers.append(
            LayerConfig(
                layer_type=layer_type,
                head_dim=head_dim,
                num_key_value_heads=kv_heads,
                owns_kv=owns_kv,
                k_eq_v=bool(text.get("attention_k_eq_v", False)) and layer_type == FULL,
                intermediate_size=_require(text, "intermediate_size") * (2 if wide and not owns_kv else 1),
            )
        )
    return tuple(layers)


def _layer_types(text: dict[str, Any], count: int) -> list[str]:
    types = _require(text, "layer_types")
    unknown = sorted(set(types) - {SLIDING, FULL})
    if len(types) != count or unknown:
        raise UserError(
            f"layer_types must name {count} layers, each {SLIDING!r} or {FULL!r}",
            given=f"{len(types)} layers" + (f", {unknown}" if unknown else ""),
            fix="check config.json",
        )
    return types


def _attention_shape(text: dict[str, Any]) -> Callable[[int, str], tuple[int, int]]:
    """How this config's dialect gives (head_dim, kv heads) of a layer."""
    head_dim, kv_heads = _require(text, "head_dim"), _require(text, "num_key_value_heads")
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
