"""A target's config.json in the dialect that mlx-lm reads; fields for which mlx-lm has other defaults are filled in."""

from typing import Any

from mtp_mlx.errors import UserError
from mtp_mlx.models import llama_config
from mtp_mlx.models.config import FULL, DecoderConfig
from mtp_mlx.models.gemma4_config import TextConfig
from mtp_mlx.models.llama_config import LlamaConfig

# The type of Gemma 4 that mlx-lm has a text-only loader for; it reads the others inside of a multimodal config.
_TEXT_ONLY = "gemma4_text"


def is_text_only(config: dict[str, Any]) -> bool:
    """Whether mlx-lm reads this config.json, and the names beside it, without a multimodal wrapper."""
    return not config.get("text_config") and config["model_type"] in (_TEXT_ONLY, *llama_config.TARGET_TYPES)


def mlx_lm_config(config: dict[str, Any], text: DecoderConfig) -> dict[str, Any]:
    """Rewrites config.json of a target.

    Args:
        config: as the checkpoint has it.
        text: what it was read to.

    Raises:
        UserError: mlx-lm's fields cannot say what this one says.
    """
    return _llama(config, text) if isinstance(text, LlamaConfig) else _gemma4(config, text)


def _llama(config: dict[str, Any], text: LlamaConfig) -> dict[str, Any]:
    fields = {key: value for key, value in config.items() if key != "rope_parameters"}
    return {
        **fields,
        "head_dim": text.layers[0].head_dim,
        "num_key_value_heads": text.layers[0].num_key_value_heads,
        "tie_word_embeddings": text.tie_word_embeddings,
        "max_position_embeddings": text.max_position_embeddings,
        "rms_norm_eps": text.rms_norm_eps,
        "rope_theta": text.rope["rope_theta"],
        "rope_scaling": None if text.rope["rope_type"] == "default" else text.rope,
    }


def _gemma4(config: dict[str, Any], text: TextConfig) -> dict[str, Any]:
    outer = {key: value for key, value in config.items() if key != "text_config"}
    own = config.get("text_config") or config
    inner = _rewritten(own, _filled_in({**outer, **own}, text), text)
    if is_text_only(config):
        return inner
    return {
        **outer,
        "model_type": config["model_type"].removesuffix("_text"),
        "vocab_size": text.vocab_size,
        "eos_token_id": list(text.eos_token_ids),
        "text_config": inner,
    }


def _filled_in(fields: dict[str, Any], text: TextConfig) -> dict[str, Any]:
    full = next(layer for layer in text.layers if layer.layer_type == FULL)
    return {
        "global_head_dim": full.head_dim,
        "num_global_key_value_heads": full.num_key_value_heads,
        "num_kv_shared_layers": fields.get("num_kv_shared_layers") or 0,
        "use_double_wide_mlp": bool(fields.get("use_double_wide_mlp")),
        "hidden_size_per_layer_input": text.hidden_size_per_layer_input,
        "final_logit_softcapping": text.final_logit_softcapping,
        "max_position_embeddings": text.max_position_embeddings,
    }


def _rewritten(own: dict[str, Any], filled_in: dict[str, Any], text: TextConfig) -> dict[str, Any]:
    """Without `per_layer_config`, which mlx-lm does not know."""
    fields = {key: value for key, value in {**own, **filled_in}.items() if key != "per_layer_config"}
    if TextConfig.from_dict({**fields, "model_type": _TEXT_ONLY}).layers != text.layers:
        raise UserError("mlx-lm's configuration cannot describe this model: its layers of one type differ")
    return fields
