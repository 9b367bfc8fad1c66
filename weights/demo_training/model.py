"""Gemma 4's text architecture (as E2B: PLE, KV-shared layers, double-wide MLP) as a compact torch module for
training on a CPU. Parameter names are those of the Hugging Face checkpoint without the leading `model.`.

Compact means: no cache, no L x L masks for sliding layers (each chunk of one window sees itself and the chunk
before it), one key-value head. `compare_with_transformers.py` compares its logits with those of transformers.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CONFIG = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "dtype": "bfloat16",
    "vocab_size": 4096,
    "vocab_size_per_layer_input": 4096,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 10,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2,
    "num_kv_shared_layers": 5,
    "use_double_wide_mlp": True,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "num_global_key_value_heads": None,
    "head_dim": 64,
    "global_head_dim": 128,
    "hidden_size_per_layer_input": 32,
    "sliding_window": 128,
    "attention_k_eq_v": False,
    "attention_bias": False,
    "enable_moe_block": False,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    },
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": [1, 106],
}


class RMSNorm(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return unit_rms(x) * self.weight


def unit_rms(x: Tensor) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + CONFIG["rms_norm_eps"])


def linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=inputs**-0.5)
    return layer


def rope_tables(length: int, full: bool) -> tuple[Tensor, Tensor]:
    """cos and sin, each [length, head_dim]; proportional RoPE sets the slowest three quarters of the
    frequencies of a full layer to zero.
    """
    size = CONFIG["global_head_dim"] if full else CONFIG["head_dim"]
    settings = CONFIG["rope_parameters"]["full_attention" if full else "sliding_attention"]
    frequencies = settings["rope_theta"] ** -(torch.arange(0, size, 2).float() / size)
    frequencies[int(settings.get("partial_rotary_factor", 1.0) * size // 2) :] = 0.0
    angles = torch.arange(length).float()[:, None] * frequencies.repeat(2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """RoPE over x [B, L, heads, size]."""
    cos, sin = (table[:, None, :] for table in tables)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def full_attention(q: Tensor, k: Tensor, v: Tensor, chunk: int = 256) -> Tensor:
    """Causal attention: q [B, L, H, d], k and v [B, L, d] -> [B, L, H * d].

    Cut into chunks of rows, each against the keys up to its end: on a CPU little more than half the work of a
    masked L x L product, and faster than torch's flash kernel in bfloat16.
    """
    batch, length, heads, size = q.shape
    parts = []
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        rows = q[:, start:end].reshape(batch, (end - start) * heads, size)
        scores = torch.bmm(rows, k[:, :end].transpose(1, 2)).view(batch, end - start, heads, end).float()
        visible = torch.arange(end)[None] <= torch.arange(start, end)[:, None]
        weights = scores.masked_fill(~visible[None, :, None, :], -math.inf).softmax(-1).to(v.dtype)
        attended = torch.bmm(weights.view(batch, -1, end), v[:, :end])
        parts.append(attended.view(batch, end - start, heads * size))
    return torch.cat(parts, dim=1)


def sliding_attention(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """As `full_attention`, keys at most window - 1 back; the length is a multiple of the window.

    Chunks of one window attend to themselves and to the chunk before them; the heads lie along the rows,
    because they share one key-value head.
    """
    batch, length, heads, size = q.shape
    chunks = length // window
    q = q.reshape(batch * chunks, window * heads, size)
    k, v = (with_previous_chunk(t.reshape(batch, chunks, window, size)) for t in (k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(batch, chunks, window, heads, 2 * window).float()
    row = torch.arange(window)[:, None] + window
    column = torch.arange(2 * window)[None]
    visible = (column <= row) & (column > row - window)
    visible = visible[None] & ((torch.arange(chunks) > 0)[:, None, None] | (column >= window))
    weights = scores.masked_fill(~visible[None, :, :, None, :], -math.inf).softmax(-1).to(v.dtype)
    out = torch.bmm(weights.view(batch * chunks, window * heads, 2 * window), v)
    return out.view(batch, length, heads * size)


def with_previous_chunk(x: Tensor) -> Tensor:
    """[B, C, W, d] -> [B * C, 2 W, d]: each chunk after the one before it (zeros before the first)."""
    previous = F.pad(x[:, :-1], (0, 0, 0, 0, 1, 0))
    return torch.cat([previous, x], dim=2).flatten(0, 1)


class Attention(nn.Module):
    def __init__(self, index: int):
        super().__init__()
        hidden, self.heads = CONFIG["hidden_size"], CONFIG["num_attention_heads"]
        self.full = CONFIG["layer_types"][index] == "full_attention"
        self.size = CONFIG["global_head_dim"] if self.full else CONFIG["head_dim"]
        self.owns_kv = index < CONFIG["num_hidden_layers"] - CONFIG["num_kv_shared_layers"]
        self.q_proj = linear(hidden, self.heads * self.size)
        self.q_norm = RMSNorm(self.size)
        # Attention scale is 1.0 in Gemma 4, so the usual 1 / sqrt(d) is where q_norm starts.
        nn.init.constant_(self.q_norm.weight, self.size**-0.5)
        if self.owns_kv:
            self.k_proj, self.v_proj = linear(hidden, self.size), linear(hidden, self.size)
            self.k_norm = RMSNorm(self.size)
        self.o_proj = linear(self.heads * self.size, hidden)

    def keys_values(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        k = rotate(self.k_norm(self.k_proj(x)).unsqueeze(2), tables).squeeze(2)
        v = unit_rms(self.v_proj(x))
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else x.dtype
        return k.to(dtype), v.to(dtype)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], kv: tuple[Tensor, Tensor]) -> Tensor:
        q = rotate(self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.size))), tables)
        k, v = kv
        q = q.to(k.dtype)
        if self.full:
            return self.o_proj(full_attention(q, k, v))
        return self.o_proj(sliding_attention(q, k, v, CONFIG["sliding_window"]))


class MLP(nn.Module):
    def __init__(self, width: int, hidden: int = CONFIG["hidden_size"]):
        super().__init__()
        self.gate_proj, self.up_proj = linear(hidden, width), linear(hidden, width)
        self.down_proj = linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, index: int):
        super().__init__()
        hidden, ple = CONFIG["hidden_size"], CONFIG["hidden_size_per_layer_input"]
        self.self_attn = Attention(index)
        self.mlp = MLP(CONFIG["intermediate_size"] * (1 if self.self_attn.owns_kv else 2))
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(hidden), RMSNorm(hidden)
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = RMSNorm(hidden), RMSNorm(hidden)
        self.per_layer_input_gate, self.per_layer_projection = linear(hidden, ple), linear(ple, hidden)
        self.post_per_layer_input_norm = RMSNorm(hidden)
        self.layer_scalar = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, per_layer: Tensor, tables: tuple[Tensor, Tensor], shared: dict) -> Tensor:
        normed = self.input_layernorm(x)
        if self.self_attn.owns_kv:
            shared[self.self_attn.full] = self.self_attn.keys_values(normed, tables)
        attended = self.self_attn(normed, tables, shared[self.self_attn.full])
        x = x + self.post_attention_layernorm(attended)
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        gated = F.gelu(self.per_layer_input_gate(x), approximate="tanh") * per_layer
        x = x + self.post_per_layer_input_norm(self.per_layer_projection(gated))
        return x * self.layer_scalar


class TargetModel(nn.Module):
    """tokens int64 [B, L], L a multiple of the window -> logits [B, L, vocab]."""

    def __init__(self):
        super().__init__()
        vocab, hidden, layers = CONFIG["vocab_size"], CONFIG["hidden_size"], CONFIG["num_hidden_layers"]
        self.ple = CONFIG["hidden_size_per_layer_input"]
        self.embed_tokens = nn.Embedding(vocab, hidden)
        self.embed_tokens_per_layer = nn.Embedding(vocab, layers * self.ple)
        nn.init.normal_(self.embed_tokens.weight, std=hidden**-0.5)
        nn.init.normal_(self.embed_tokens_per_layer.weight, std=self.ple**-0.5)
        self.per_layer_model_projection = linear(hidden, layers * self.ple)
        self.per_layer_projection_norm = RMSNorm(self.ple)
        self.layers = nn.ModuleList(Layer(index) for index in range(layers))
        self.norm = RMSNorm(hidden)

    def per_layer_inputs(self, tokens: Tensor, x: Tensor) -> Tensor:
        """The token's own part and the projected part of PLE, [B, L, layers, ple]."""
        own = self.embed_tokens_per_layer(tokens).unflatten(-1, (-1, self.ple)) * self.ple**0.5
        projected = self.per_layer_model_projection(x) * x.shape[-1] ** -0.5
        return (self.per_layer_projection_norm(projected.unflatten(-1, (-1, self.ple))) + own) * 2**-0.5

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens) * CONFIG["hidden_size"] ** 0.5
        per_layer = self.per_layer_inputs(tokens, x)
        tables = {full: rope_tables(tokens.shape[1], full) for full in (False, True)}
        shared: dict[bool, tuple[Tensor, Tensor]] = {}
        for index, layer in enumerate(self.layers):
            x = layer(x, per_layer[:, :, index], tables[layer.self_attn.full], shared)
        return self.logits(self.norm(x))

    def logits(self, hidden: Tensor) -> Tensor:
        logits = F.linear(hidden, self.embed_tokens.weight)
        cap = CONFIG["final_logit_softcapping"]
        return torch.tanh(logits / cap) * cap

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats a token; `targets` 0 (padding) is left out."""
        logits = self(tokens).float().flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten(), ignore_index=CONFIG["pad_token_id"])
