"""What the fields of a config.json may hold: another kind of value is named before anything computes with it."""

from collections.abc import Callable
from typing import Any

from mtp_weights.errors import UserError

_FIX = "use an unmodified Gemma 4 config.json"
_SMALL, _LARGE = 2**15, 2**24  # far above every real size; products of two sizes still fit MLX's int32 shapes

_LARGEST = 1e18  # an integer beyond that fits no number of MLX's

Rule = tuple[str, Callable[[Any], bool]]


def _count(least: int, most: int) -> Rule:
    """Null counts as absent."""
    kind = f"a whole number from {least} to {most}"
    return kind, lambda value: value is None or (type(value) is int and least <= value <= most)


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= _LARGEST


_POSITIVE: Rule = ("a positive number", _is_positive)
_POSITIVE_OR_NULL: Rule = ("a positive number or null", lambda value: value is None or _is_positive(value))
_BOOL: Rule = ("true or false", lambda value: type(value) is bool)
_BOOL_OR_NULL: Rule = ("true, false or null", lambda value: value is None or type(value) is bool)
_OBJECT: Rule = ("an object", lambda value: isinstance(value, dict))
_OBJECT_OR_NULL: Rule = ("an object or null", lambda value: value is None or isinstance(value, dict))
_NAMES: Rule = (
    "a list of names",
    lambda value: value is None or (isinstance(value, list) and all(isinstance(name, str) for name in value)),
)

_TEXT: dict[str, Rule] = {
    "vocab_size": _count(1, _LARGE),
    "hidden_size": _count(1, _LARGE),
    "intermediate_size": _count(1, _LARGE),
    "sliding_window": _count(1, _LARGE),
    "max_position_embeddings": _count(1, 2**31 - 1),
    "num_hidden_layers": _count(1, _SMALL),
    "num_attention_heads": _count(1, _SMALL),
    "num_key_value_heads": _count(1, _SMALL),
    "head_dim": _count(1, _SMALL),
    "global_head_dim": _count(1, _SMALL),
    "num_global_key_value_heads": _count(1, _SMALL),
    "num_kv_shared_layers": _count(0, _SMALL),
    "hidden_size_per_layer_input": _count(0, _SMALL),
    "vocab_size_per_layer_input": _count(0, _LARGE),
    "num_experts": _count(0, _SMALL),
    "top_k_experts": _count(0, _SMALL),
    "moe_intermediate_size": _count(0, _SMALL),
    "rms_norm_eps": _POSITIVE_OR_NULL,
    "final_logit_softcapping": _POSITIVE_OR_NULL,
    "tie_word_embeddings": _BOOL,
    "attention_k_eq_v": _BOOL_OR_NULL,
    "use_double_wide_mlp": _BOOL_OR_NULL,
    "enable_moe_block": _BOOL_OR_NULL,
    "layer_types": _NAMES,
    "rope_parameters": _OBJECT_OR_NULL,
    "per_layer_config": _OBJECT_OR_NULL,
}
_DRAFTER: dict[str, Rule] = {
    "text_config": _OBJECT_OR_NULL,
    "backbone_hidden_size": _count(1, _LARGE),
    "use_ordered_embeddings": _BOOL_OR_NULL,
    "num_centroids": _count(0, _LARGE),
    "centroid_intermediate_top_k": _count(0, _LARGE),
}
_LAYER: dict[str, Rule] = {name: _TEXT[name] for name in ("head_dim", "num_key_value_heads")}
_ROPE: dict[str, Rule] = {
    "rope_type": ('"default" or "proportional"', lambda value: value in ("default", "proportional")),
    "rope_theta": _POSITIVE,
    "partial_rotary_factor": ("a number above 0, at most 1", lambda value: _is_positive(value) and value <= 1),
}


def check_text(config: dict[str, Any]) -> None:
    """Checks a text config's fields, those of its layers and of its position embeddings; absent ones are fine.

    Raises:
        UserError: a field holds something that it cannot.
    """
    _check(config, _TEXT)
    for index, layer in (config.get("per_layer_config") or {}).items():
        _check_object(f"per_layer_config[{index}]", layer, _LAYER)
    for layer_type, rope in (config.get("rope_parameters") or {}).items():
        _check_object(f"rope_parameters[{layer_type}]", rope, _ROPE)
        if "rope_theta" not in rope:
            raise UserError(f"config.json's rope_parameters[{layer_type}] lacks 'rope_theta'", fix=_FIX)
    experts, chosen = config.get("num_experts"), config.get("top_k_experts")
    if config.get("enable_moe_block") and experts is not None and chosen is not None and not 1 <= chosen <= experts:
        raise UserError(
            f"config.json's top_k_experts must be from 1 to num_experts = {experts}", given=chosen, fix=_FIX
        )


def check_drafter(config: dict[str, Any]) -> None:
    """Checks the fields that a drafter's config.json has besides its text config.

    Raises:
        UserError: a field holds something that it cannot.
    """
    _check(config, _DRAFTER)


def check_outer(config: dict[str, Any]) -> None:
    """Checks where a multimodal config.json has its text config.

    Raises:
        UserError: `text_config` holds something else than an object.
    """
    _check(config, {"text_config": _OBJECT_OR_NULL})


def _check_object(name: str, value: Any, rules: dict[str, Rule]) -> None:
    _check({name: value}, {name: _OBJECT})
    _check(value, rules, f"{name}.")


def _check(fields: dict[str, Any], rules: dict[str, Rule], prefix: str = "") -> None:
    for name, (kind, holds) in rules.items():
        if name in fields and not holds(fields[name]):
            raise UserError(f"config.json's {prefix}{name} must be {kind}", given=repr(fields[name]), fix=_FIX)
