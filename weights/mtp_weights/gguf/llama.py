"""The Llama architecture in GGUF: its metadata as a config.json, its tensors under the checkpoints' names.

After llama.cpp's converter. It interleaves the rows of queries and keys, so that neighbours rotate together, where
checkpoints keep the two halves of a head apart.
"""

import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from mtp_weights.errors import UserError
from mtp_weights.gguf.header import Header

_ROOTS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_BLOCK = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
ROPE_FACTORS = "rope_freqs.weight"
_TOLERANCE = 1e-3  # of factors that are stored as float32

Array = Callable[[str], mx.array]


def config_of(header: Header, rope_factors: np.ndarray | None) -> dict[str, Any]:
    """The config.json of a Llama model.

    Args:
        rope_factors: by how much each frequency is slowed down [head_dim / 2], where the file says.

    Raises:
        UserError: something is missing, or this kind of Llama cannot be written as a checkpoint.
    """
    fields = _Fields(header.metadata)
    heads, hidden_size = fields.count("attention.head_count"), fields.count("embedding_length")
    head_dim = fields.count("attention.key_length", hidden_size // heads)
    _check(header, fields, head_dim)
    theta = fields.number("rope.freq_base", 10_000.0)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": header.shapes["token_embd.weight"][0],
        "hidden_size": hidden_size,
        "num_hidden_layers": fields.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": fields.count("feed_forward_length"),
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon", 1e-5),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(fields, theta, head_dim, rope_factors),
        "max_position_embeddings": fields.count("context_length"),
        "tie_word_embeddings": "output.weight" not in header.shapes,
        "attention_bias": "blk.0.attn_q.bias" in header.shapes,
        "mlp_bias": "blk.0.ffn_gate.bias" in header.shapes,
        "hidden_act": "silu",
    }


def weights_of(header: Header, array: Array, heads: int, kv_heads: int) -> dict[str, mx.array]:
    """The tensors under the checkpoints' names, not evaluated.

    Args:
        array: gives a tensor by its name in the file, not quantized.

    Raises:
        UserError: a tensor that a Llama model does not have.
    """
    rows = {"attn_q": heads, "attn_k": kv_heads}
    weights = {}
    for name in header.shapes:
        if name == ROPE_FACTORS:
            continue
        ours, part = _renamed(name)
        weights[ours] = _halves(array(name), rows[part]) if part in rows else array(name)
    return weights


def _renamed(name: str) -> tuple[str, str]:
    """The name in checkpoints, and which part of a block it is."""
    block = _BLOCK.fullmatch(name)
    if block and block[2] in _IN_BLOCK:
        return f"model.layers.{block[1]}.{_IN_BLOCK[block[2]]}.{block[3]}", block[2]
    root, _, kind = name.partition(".")
    if root not in _ROOTS or kind != "weight":
        raise UserError("the GGUF file has a tensor that no Llama model has", given=name, fix="use another model")
    return f"{_ROOTS[root]}.weight", root


def _halves(rows: mx.array, heads: int) -> mx.array:
    """Rows [heads · head_dim, …] of neighbours that rotate together -> of the first and the second of each pair."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


class _Fields:
    """The metadata of the architecture."""

    def __init__(self, metadata: dict[str, Any]):
        self.metadata = metadata

    def get(self, name: str, default: Any = None) -> Any:
        return self.metadata.get(f"llama.{name}", default)

    def count(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if type(value) is not int or value < 1:
            raise UserError(f"the GGUF file's llama.{name} must be a positive whole number", given=value)
        return value

    def number(self, name: str, default: float) -> float:
        """As it was written before it became a float32: 1e-05, not 9.999999747378752e-06."""
        value = self.get(name, default)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise UserError(f"the GGUF file's llama.{name} must be a positive number", given=value)
        return float(f"{value:.7g}")


def _check(header: Header, fields: _Fields, head_dim: int) -> None:
    if "token_embd.weight" not in header.shapes:
        raise UserError("the GGUF file has no token_embd.weight", fix="name the model's first file")
    if fields.get("expert_count"):
        raise UserError("a mixture of experts in GGUF is not supported", given=f"{fields.get('expert_count')} experts")
    if fields.get("attention.sliding_window"):
        raise UserError("a sliding window in GGUF is not supported", given=fields.get("attention.sliding_window"))
    if fields.get("attention.value_length", head_dim) != head_dim:
        given = f"{head_dim} and {fields.get('attention.value_length')}"
        raise UserError("keys and values of the GGUF file must have the same size", given=given)
    if fields.get("rope.dimension_count", head_dim) != head_dim:
        raise UserError(f"all {head_dim} dimensions of a head must rotate", given=fields.get("rope.dimension_count"))


def _rope_scaling(fields: _Fields, theta: float, head_dim: int, factors: np.ndarray | None) -> dict[str, Any] | None:
    kind, factor = fields.get("rope.scaling.type", "none"), fields.number("rope.scaling.factor", 1.0)
    if factors is not None:
        return _llama3_scaling(theta, head_dim, factors)
    if kind == "none" or factor == 1.0:
        return None
    if kind not in ("linear", "yarn"):
        raise UserError("this scaling of positions in GGUF is not supported", given=kind)
    original = fields.get("rope.scaling.original_context_length")
    known = {} if original is None else {"original_max_position_embeddings": original}
    return {"rope_type": kind, "factor": factor, **known}


def _llama3_scaling(theta: float, head_dim: int, factors: np.ndarray) -> dict[str, Any]:
    """Llama 3's parameters, which the file has only by what they do to each frequency."""
    known = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    factor = round(float(factors.max()), 3)
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = 8192 / known["low_freq_factor"], 8192 / known["high_freq_factor"]
    smooth = (8192 / wavelengths - known["low_freq_factor"]) / (known["high_freq_factor"] - known["low_freq_factor"])
    between = 1 / ((1 - smooth) / factor + smooth)
    expected = np.where(wavelengths < high, 1.0, np.where(wavelengths > low, factor, between))
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=_TOLERANCE):
        raise UserError("the GGUF file scales positions otherwise than Llama 3 does", given=ROPE_FACTORS)
    return {"rope_type": "llama3", "factor": factor, **known}
