"""Gemma 4 text decoder: E2B, E4B, 12B, 26B-A4B and 31B.

Parameter names are the checkpoints' (and mlx-lm's). Architecture as in transformers' `modeling_gemma4.py` and mlx-lm's
`gemma4_text.py`.
"""

import math
from collections.abc import Iterable
from functools import partial

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.rope_utils import initialize_rope
from mlx_lm.models.switch_layers import SwitchGLU

from mtp_mlx.models.gemma4_config import TextConfig
from mtp_mlx.models.target import Decoder, Target
from mtp_mlx.steps import Step


@partial(mx.compile, shapeless=True)
def _geglu(gate: mx.array, x: mx.array) -> mx.array:
    # gelu(tanh approximation) as x·sigmoid: 1 + tanh(u) = 2·sigmoid(2u). The same function, without the cancellation
    # for negative inputs, and 1.7 times as fast on a CPU.
    inner = math.sqrt(8 / math.pi) * (gate + 0.044715 * gate * gate * gate)
    return gate * mx.sigmoid(inner) * x


@partial(mx.compile, shapeless=True)
def _softcap(logits: mx.array, cap: mx.array) -> mx.array:
    return mx.tanh(logits / cap) * cap


class Attention(nn.Module):
    """Attention with scale 1.0, normalized queries and keys, and a weightless norm on values."""

    def __init__(self, config: TextConfig, index: int):
        super().__init__()
        layer = config.layers[index]
        D, heads, kv_heads = config.hidden_size, config.num_attention_heads, layer.num_key_value_heads
        self.index, self.layer, self.heads, self.eps = index, layer, heads, config.rms_norm_eps
        self.q_proj = nn.Linear(D, heads * layer.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * layer.head_dim, D, bias=False)
        self.q_norm = nn.RMSNorm(layer.head_dim, eps=config.rms_norm_eps)
        if layer.owns_kv:
            self.k_proj = nn.Linear(D, kv_heads * layer.head_dim, bias=False)
            self.k_norm = nn.RMSNorm(layer.head_dim, eps=config.rms_norm_eps)
            if not layer.k_eq_v:
                self.v_proj = nn.Linear(D, kv_heads * layer.head_dim, bias=False)
        rope = config.rope_parameters[layer.layer_type]
        self.rope = initialize_rope(layer.head_dim, rope["rope_theta"], False, rope)
        # Its frequencies, now: unevaluated, each compiled round would compute them, and only in this thread.
        mx.eval(self.rope)

    def __call__(self, x: mx.array, step: Step) -> mx.array:
        B, L, _ = x.shape
        queries = self.q_norm(self.q_proj(x).reshape(B, L, self.heads, -1))
        queries = self.rope(queries.transpose(0, 2, 1, 3), offset=step.offset)
        if self.layer.owns_kv:
            step.write(self.index, *self.keys_values(x, step))
        out = step.attend(queries, self.layer.layer_type, scale=1.0)
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(B, L, -1))

    def keys_values(self, x: mx.array, step: Step) -> tuple[mx.array, mx.array]:
        B, L, _ = x.shape
        keys = self.k_proj(x).reshape(B, L, -1, self.layer.head_dim)
        values = keys if self.layer.k_eq_v else self.v_proj(x).reshape(B, L, -1, self.layer.head_dim)
        keys = self.rope(self.k_norm(keys).transpose(0, 2, 1, 3), offset=step.offset)
        return keys, mx.fast.rms_norm(values, None, self.eps).transpose(0, 2, 1, 3)


class MLP(nn.Module):
    def __init__(self, dims: int, hidden_dims: int):
        super().__init__()
        self.gate_proj = nn.Linear(dims, hidden_dims, bias=False)
        self.up_proj = nn.Linear(dims, hidden_dims, bias=False)
        self.down_proj = nn.Linear(hidden_dims, dims, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(_geglu(self.gate_proj(x), self.up_proj(x)))


class Router(nn.Module):
    """Chooses the experts of each token and their weights."""

    def __init__(self, config: TextConfig):
        super().__init__()
        self.top_k, self.eps = config.top_k_experts, config.rms_norm_eps
        self.root_size = config.hidden_size**-0.5
        self.proj = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.scale = mx.ones((config.hidden_size,))
        self.per_expert_scale = mx.ones((config.num_experts,))

    def __call__(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """x [B, L, D] -> expert ids and weights, both [B, L, top_k]."""
        scores = self.proj(mx.fast.rms_norm(x, self.scale * self.root_size, self.eps))
        ids = mx.argpartition(scores, kth=-self.top_k, axis=-1)[..., -self.top_k :]
        weights = mx.softmax(mx.take_along_axis(scores, ids, axis=-1), axis=-1)
        return ids, weights * self.per_expert_scale[ids]


class _GeGLU(nn.Module):
    def __call__(self, x: mx.array, gate: mx.array) -> mx.array:
        return _geglu(gate, x)


class Experts(nn.Module):
    def __init__(self, config: TextConfig):
        super().__init__()
        self.switch_glu = SwitchGLU(
            config.hidden_size, config.moe_intermediate_size, config.num_experts, activation=_GeGLU()
        )

    def __call__(self, x: mx.array, ids: mx.array, weights: mx.array) -> mx.array:
        return (weights[..., None] * self.switch_glu(x, ids)).sum(-2)


class DecoderLayer(nn.Module):
    def __init__(self, config: TextConfig, index: int):
        super().__init__()
        norm = partial(nn.RMSNorm, config.hidden_size, eps=config.rms_norm_eps)
        self.has_experts = config.num_experts > 0
        self.has_ple = config.hidden_size_per_layer_input > 0
        self.self_attn = Attention(config, index)
        self.mlp = MLP(config.hidden_size, config.layers[index].intermediate_size)
        self.input_layernorm = norm()
        self.post_attention_layernorm = norm()
        self.pre_feedforward_layernorm = norm()
        self.post_feedforward_layernorm = norm()
        self.layer_scalar = mx.ones((1,))
        if self.has_experts:
            self.router = Router(config)
            self.experts = Experts(config)
            self.post_feedforward_layernorm_1 = norm()
            self.pre_feedforward_layernorm_2 = norm()
            self.post_feedforward_layernorm_2 = norm()
        if self.has_ple:
            self.per_layer_input_gate = nn.Linear(config.hidden_size, config.hidden_size_per_layer_input, bias=False)
            self.per_layer_projection = nn.Linear(config.hidden_size_per_layer_input, config.hidden_size, bias=False)
            self.post_per_layer_input_norm = norm()

    def __call__(self, x: mx.array, step: Step, per_layer_input: mx.array | None = None) -> mx.array:
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), step))
        x = x + self.post_feedforward_layernorm(self.feedforward(x))
        if self.has_ple:
            gate = _geglu(self.per_layer_input_gate(x), per_layer_input)
            x = x + self.post_per_layer_input_norm(self.per_layer_projection(gate))
        return x * self.layer_scalar

    def feedforward(self, x: mx.array) -> mx.array:
        dense = self.mlp(self.pre_feedforward_layernorm(x))
        if not self.has_experts:
            return dense
        sparse = self.experts(self.pre_feedforward_layernorm_2(x), *self.router(x))
        return self.post_feedforward_layernorm_1(dense) + self.post_feedforward_layernorm_2(sparse)


class Gemma4TextModel(Decoder):
    """The decoder up to and including its final norm."""

    def __init__(self, config: TextConfig):
        super().__init__(config, [DecoderLayer(config, i) for i in range(len(config.layers))])
        if config.hidden_size_per_layer_input:
            width = len(config.layers) * config.hidden_size_per_layer_input
            self.embed_tokens_per_layer = nn.Embedding(config.vocab_size_per_layer_input, width)
            self.per_layer_model_projection = nn.Linear(config.hidden_size, width, bias=False)
            self.per_layer_projection_norm = nn.RMSNorm(config.hidden_size_per_layer_input, eps=config.rms_norm_eps)

    def embed(self, inputs: mx.array) -> mx.array:
        """Token ids [B, L] -> scaled embeddings [B, L, D]; the drafter's input uses the same."""
        return self.embed_tokens(inputs) * self.config.hidden_size**0.5

    def per_layer_inputs(self, inputs: mx.array, x: mx.array) -> mx.array | None:
        """Per-layer embeddings [B, L, layers, width] of ids `inputs` with scaled embeddings `x`, or None."""
        width = self.config.hidden_size_per_layer_input
        if not width:
            return None
        shape = (*inputs.shape, len(self.config.layers), width)
        looked_up = (self.embed_tokens_per_layer(inputs) * width**0.5).reshape(shape)
        projected = (self.per_layer_model_projection(x) * self.config.hidden_size**-0.5).reshape(shape)
        return (self.per_layer_projection_norm(projected) + looked_up) * 2.0**-0.5

    def run(self, indices: Iterable[int], x: mx.array, per_layer: mx.array | None, step: Step) -> mx.array:
        for i in indices:
            x = self.layers[i](x, step, None if per_layer is None else per_layer[:, :, i])
        return x


class Gemma4(Target):
    """A Gemma 4 target: its logits are capped softly."""

    def __init__(self, config: TextConfig):
        super().__init__(Gemma4TextModel(config))

    def logits(self, hidden: mx.array) -> mx.array:
        """Hidden states [B, L, D] after the final norm -> logits [B, L, V] after the softcap."""
        logits, cap = super().logits(hidden), self.config.final_logit_softcapping
        return logits if cap is None else _softcap(logits, mx.array(cap, logits.dtype))
