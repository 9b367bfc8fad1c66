"""Writes small GGUF files as llama.cpp's converter would, tensor types and all."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from tests import tiny
from tests.tiny_bpe import MERGES, TOKENS

F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8
ALIGNMENT, GROUP = 32, 32
PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ROOTS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}

Metadata = dict[str, Any]


def write(
    path: Path,
    metadata: Metadata,
    tensors: dict[str, np.ndarray],
    kind_of: Callable[[str, np.ndarray], int] = lambda name, array: F32,
) -> Path:
    """Writes a file of version 3; `kind_of` says in which type each tensor is stored."""
    infos, data = b"", b""
    for name, array in tensors.items():
        kind = kind_of(name, array)
        data += b"\0" * (-len(data) % ALIGNMENT)
        infos += _text(name) + struct.pack("<I", array.ndim)
        infos += b"".join(struct.pack("<Q", length) for length in reversed(array.shape))
        infos += struct.pack("<IQ", kind, len(data))
        data += _stored(array, kind)
    pairs = b"".join(_text(key) + _value(value) for key, value in metadata.items())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + pairs + infos
    path.write_bytes(head + b"\0" * (-len(head) % ALIGNMENT) + data)
    return path


def of_target(config: tiny.Config, weights: dict[str, mx.array]) -> tuple[Metadata, dict[str, np.ndarray]]:
    """A tiny Llama target's metadata and tensors, with the rows of queries and keys interleaved."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    tensors = {}
    for name, array in weights.items():
        path, _, kind = name.rpartition(".")
        rows = {"q_proj": heads, "k_proj": kv_heads}.get(path.rpartition(".")[2])
        array = np.array(array)
        tensors[f"{_renamed(path)}.{kind}"] = array if rows is None else _interleaved(array, rows)
    return {**architecture(config), **tokenizer()}, tensors


def architecture(config: tiny.Config) -> Metadata:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    fields = {
        "vocab_size": config["vocab_size"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.dimension_count": head_dim,
        "rope.freq_base": config["rope_theta"],
    }
    return {"general.architecture": "llama", **{f"llama.{name}": value for name, value in fields.items()}}


def tokenizer() -> Metadata:
    fields = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": TOKENS,
        "token_type": [3, 3, 3] + [1] * (len(TOKENS) - 4) + [4],
        "merges": MERGES,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "padding_token_id": 2,
        "add_bos_token": False,
    }
    template = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    template += "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    return {**{f"tokenizer.ggml.{name}": value for name, value in fields.items()}, "tokenizer.chat_template": template}


def rounded(array: np.ndarray, kind: int) -> np.ndarray:
    """What is left of the numbers once they are stored."""
    if kind in (F32, F16):
        return array.astype(np.float16 if kind == F16 else np.float32).astype(np.float32)
    scales, quants = _quantized(array, kind)
    return (scales.astype(np.float32) * quants).reshape(array.shape)


def _renamed(path: str) -> str:
    if path in ROOTS:
        return ROOTS[path]
    _, _, layer, part = path.split(".", 3)
    return f"blk.{layer}.{PARTS[part]}"


def _interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head's two halves -> row 0 of the first, row 0 of the second, row 1 of the first, …"""
    out = np.empty_like(rows)
    size = len(rows) // heads
    for head in range(heads):
        own = rows[head * size : (head + 1) * size]
        out[head * size : (head + 1) * size : 2] = own[: size // 2]
        out[head * size + 1 : (head + 1) * size : 2] = own[size // 2 :]
    return out


def _quantized(array: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales [groups, 1] in float16 and whole numbers [groups, 32]."""
    groups = array.reshape(-1, GROUP)
    most = {Q8_0: 127, Q4_0: 7}[kind]
    scales = (np.abs(groups).max(axis=1, keepdims=True) / most).astype(np.float16)
    return scales, np.clip(np.round(groups / scales.astype(np.float32)), -most - 1, most)


def _stored(array: np.ndarray, kind: int) -> bytes:
    if kind in (F32, F16):
        return array.astype(np.float16 if kind == F16 else np.float32).tobytes()
    scales, quants = _quantized(array, kind)
    if kind == Q8_0:
        packed = quants.astype(np.int8).view(np.uint8)
    else:  # byte i has the numbers i and i + 16
        unsigned = (quants + 8).astype(np.uint8)
        packed = unsigned[:, :16] | unsigned[:, 16:] << 4
    return np.concatenate([scales.view(np.uint8), packed], axis=1).tobytes()


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    """A metadata value with its type before it."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    items = [_value(each) for each in value]
    return struct.pack("<I", 9) + items[0][:4] + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)
