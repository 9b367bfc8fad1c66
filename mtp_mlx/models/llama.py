"""Llama decoder: Llama, SmolLM2 and other checkpoints whose model_type is "llama".

Parameter names are the checkpoints' (and mlx-lm's). Architecture as in transformers' `modeling_llama.py` and mlx-lm's
`llama.py`.
"""

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.rope_utils import initialize_rope

from mtp_mlx.models.llama_config import LlamaConfig
from mtp_mlx.models.target import Decoder, Target
from mtp_mlx.steps import Step


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig, index: int):
        super().__init__()
        layer = config.layers[index]
        D, bias = config.hidden_size, config.attention_bias
        width, kv_width = (n * layer.head_dim for n in (config.num_attention_heads, layer.num_key_value_heads))
        self.index, self.layer, self.scale = index, layer, layer.head_dim**-0.5
        self.q_proj = nn.Linear(D, width, bias=bias)
        self.k_proj = nn.Linear(D, kv_width, bias=bias)
        self.v_proj = nn.Linear(D, kv_width, bias=bias)
        self.o_proj = nn.Linear(width, D, bias=bias)
        rope, context = config.rope, config.max_position_embeddings
        self.rope = initialize_rope(layer.head_dim, rope["rope_theta"], config.rope_traditional, rope, context)
        # Its frequencies, now: unevaluated, each compiled round would compute them, and only in this thread.
        mx.eval(self.rope)

    def __call__(self, x: mx.array, step: Step) -> mx.array:
        queries, keys = (self.rope(self._heads(proj(x)), offset=step.offset) for proj in (self.q_proj, self.k_proj))
        step.write(self.index, keys, self._heads(self.v_proj(x)))
        out = step.attend(queries, self.layer.layer_type, self.scale)
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1))

    def _heads(self, x: mx.array) -> mx.array:
        """[B, L, heads · head_dim] -> [B, heads, L, head_dim]"""
        B, L, _ = x.shape
        return x.reshape(B, L, -1, self.layer.head_dim).transpose(0, 2, 1, 3)


class MLP(nn.Module):
    def __init__(self, dims: int, hidden_dims: int, bias: bool):
        super().__init__()
        self.gate_proj = nn.Linear(dims, hidden_dims, bias=bias)
        self.up_proj = nn.Linear(dims, hidden_dims, bias=bias)
        self.down_proj = nn.Linear(hidden_dims, dims, bias=bias)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class DecoderLayer(nn.Module):
    def __init__(self, config: LlamaConfig, index: int):
        super().__init__()
        self.self_attn = Attention(config, index)
        self.mlp = MLP(config.hidden_size, config.layers[index].intermediate_size, config.mlp_bias)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, x: mx.array, step: Step) -> mx.array:
        x = x + self.self_attn(self.input_layernorm(x), step)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(Target):
    """A Llama target."""

    def __init__(self, config: LlamaConfig):
        super().__init__(Decoder(config, [DecoderLayer(config, i) for i in range(len(config.layers))]))
