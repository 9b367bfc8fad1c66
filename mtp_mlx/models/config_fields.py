"""What the fields of a config.json may hold: another kind of value is named before anything computes with it."""

from collections.abc import Callable
from typing import Any

from mtp_mlx.models.config import FULL, SLIDING
from mtp_weights.errors import UserError

_FIX = "use the model's unmodified config.json"
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

# Those that rotate by one offset a slot, which only the device knows. "dynamic" asks the host for the length.
ROPE_TYPES = ("default", "linear", "llama3", "yarn", "proportional")

_DECODER: dict[str, Rule] = {
    "vocab_size": _count(1, _LARGE),
    "hidden_size": _count(1, _LARGE),
    "intermediate_size": _count(1, _LARGE),
    "sliding_window": _count(1, _LARGE),
    "max_position_embeddings": _count(1, 2**31 - 1),
    "num_hidden_layers": _count(1, _SMALL),
    "num_attention_heads": _count(1, _SMALL),
    "num_key_value_heads": _count(1, _SMALL),
    "head_dim": _count(1, _SMALL),
    "rms_norm_eps": _POSITIVE_OR_NULL,
    "tie_word_embeddings": _BOOL,
    "layer_types": _NAMES,
    "rope_parameters": _OBJECT_OR_NULL,
}
_GEMMA4: dict[str, Rule] = {
    **_DECODER,
    "global_head_dim": _count(1, _SMALL),
    "num_global_key_value_heads": _count(1, _SMALL),
    "num_kv_shared_layers": _count(0, _SMALL),
    "hidden_size_per_layer_input": _count(0, _SMALL),
    "vocab_size_per_layer_input": _count(0, _LARGE),
    "num_experts": _count(0, _SMALL),
    "top_k_experts": _count(0, _SMALL),
    "moe_intermediate_size": _count(0, _SMALL),
    "final_logit_softcapping": _POSITIVE_OR_NULL,
    "attention_k_eq_v": _BOOL_OR_NULL,
    "use_double_wide_mlp": _BOOL_OR_NULL,
    "enable_moe_block": _BOOL_OR_NULL,
    "per_layer_config": _OBJECT_OR_NULL,
}
_LLAMA: dict[str, Rule] = {
    **_DECODER,
    "attention_bias": _BOOL_OR_NULL,
    "mlp_bias": _BOOL_OR_NULL,
    "rope_traditional": _BOOL_OR_NULL,
    "hidden_act": ('"silu"', lambda value: value in (None, "silu", "swish")),
    "rope_theta": _POSITIVE_OR_NULL,
    "rope_scaling": _OBJECT_OR_NULL,
}
_DRAFTER: dict[str, Rule] = {
    "text_config": _OBJECT_OR_NULL,
    "backbone_hidden_size": _count(1, _LARGE),
    "use_ordered_embeddings": _BOOL_OR_NULL,
    "num_centroids": _count(0, _LARGE),
    "centroid_intermediate_top_k": _count(0, _LARGE),
}
_LAYER: dict[str, Rule] = {name: _GEMMA4[name] for name in ("head_dim", "num_key_value_heads")}
_ROPE: dict[str, Rule] = {
    "rope_type": (f"one of {', '.join(ROPE_TYPES)}", lambda value: value in ROPE_TYPES),
    "rope_theta": _POSITIVE,
    "partial_rotary_factor": ("a number above 0, at most 1", lambda value: _is_positive(value) and value <= 1),
    **dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"), _POSITIVE),
    **dict.fromkeys(("mscale", "mscale_all_dim"), ("a number", lambda value: value == 0 or _is_positive(value))),
    "original_max_position_embeddings": _count(1, 2**31 - 1),
}


def require(config: dict[str, Any], name: str) -> Any:
    """The value of a field that must be there and not null."""
    value = config.get(name)
    if value is None:
        raise UserError(f"config.json lacks {name!r}", fix=_FIX)
    return value


def check_text(config: dict[str, Any]) -> None:
    """Checks a text config's fields, those of its layers and of its position embeddings; absent ones are fine.

    Raises:
        UserError: a field holds something that it cannot.
    """
    _check(config, _GEMMA4)
    for index, layer in (config.get("per_layer_config") or {}).items():
        _check_object(f"per_layer_config[{index}]", layer, _LAYER)
    for layer_type, rope in (config.get("rope_parameters") or {}).items():
        check_rope(f"rope_parameters[{layer_type}]", rope)
    experts, chosen = config.get("num_experts"), config.get("top_k_experts")
    if config.get("enable_moe_block") and experts is not None and chosen is not None and not 1 <= chosen <= experts:
        raise UserError(
            f"config.json's top_k_experts must be from 1 to num_experts = {experts}", given=chosen, fix=_FIX
        )


def check_llama(config: dict[str, Any]) -> None:
    """Checks a Llama config's fields; absent ones are fine.

    Raises:
        UserError: a field holds something that it cannot.
    """
    _check(config, _LLAMA)


def check_rope(name: str, rope: Any) -> None:
    """Checks the description of position embeddings that `name` holds.

    Raises:
        UserError: something is missing, or holds what it cannot.
    """
    _check_object(name, rope, _ROPE)
    scaled = rope.get("rope_type", "default") not in ("default", "proportional")
    if missing := [field for field in ("rope_theta", *(["factor"] if scaled else [])) if rope.get(field) is None]:
        raise UserError(f"config.json's {name} lacks {missing[0]!r}", fix=_FIX)


def layer_types(config: dict[str, Any], count: int) -> list[str]:
    """The types of a decoder's `count` layers."""
    types = require(config, "layer_types")
    unknown = sorted(set(types) - {SLIDING, FULL})
    if len(types) != count or unknown:
        raise UserError(
            f"layer_types must name {count} layers, each {SLIDING!r} or {FULL!r}",
            given=f"{len(types)} layers" + (f", {unknown}" if unknown else ""),
            fix="check config.json",
        )
    return types


def check_heads(heads: int, kv_heads: int, index: int) -> None:
    """Checks that the queries of layer `index` can share its key-value heads evenly."""
    if heads % kv_heads:
        raise UserError(
            f"num_attention_heads must be a multiple of the key-value heads, in layer {index} too",
            given=f"{heads} and {kv_heads}",
            fix="check config.json",
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
