"""SmolLM2's decoder in torch, for throughput: B rows in lockstep, one token a step."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from head import rope_tables, rotate
from safetensors.torch import load_file
from torch import Tensor


class Target:
    """The target and its keys and values for `rows` sequences of `length` tokens at most.

    Attributes:
        keys, values: [layers, B, kv_heads, length, head_dim].
    """

    def __init__(self, folder: Path, rows: int, length: int):
        config = json.loads((folder / "config.json").read_text("utf-8"))
        weights = load_file(folder / "model.safetensors")
        self.dims, self.eps = config["hidden_size"], config["rms_norm_eps"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.size, self.theta = self.dims // self.heads, config["rope_theta"]
        self.embedding, self.norm = weights["model.embed_tokens.weight"].float(), weights["model.norm.weight"].float()
        self.layers = [self._layer(weights, f"model.layers.{i}.") for i in range(config["num_hidden_layers"])]
        self.keys = torch.zeros(len(self.layers), rows, self.kv_heads, length, self.size)
        self.values = torch.zeros_like(self.keys)

    def _layer(self, weights: dict[str, Tensor], prefix: str) -> tuple[Tensor, ...]:
        """Its matrices, those that read the same input put together, with the norm before them folded in."""
        get = lambda name: weights[f"{prefix}{name}.weight"].float()  # noqa: E731
        qkv = torch.cat([get(f"self_attn.{part}_proj") for part in "qkv"]) * get("input_layernorm")
        gate_up = torch.cat([get("mlp.gate_proj"), get("mlp.up_proj")]) * get("post_attention_layernorm")
        return qkv, get("self_attn.o_proj"), gate_up, get("mlp.down_proj")

    def normed(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    @torch.no_grad()
    def step(self, tokens: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """Reads token `place` of every row [B] -> its hidden state after the final norm [B, D], and logits [B, V]."""
        x = self.embedding[tokens]
        for i, layer in enumerate(self.layers):
            x = self._through(x, i, place, *layer)
        hidden = self.normed(x) * self.norm
        return hidden, F.linear(hidden, self.embedding)

    def _through(self, x: Tensor, i: int, place: int, qkv: Tensor, o: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        B = len(x)
        tables = rope_tables(torch.tensor(place), self.size, self.theta)
        q, k, v = (
            F.linear(self.normed(x), qkv).view(B, -1, self.size).split([self.heads, self.kv_heads, self.kv_heads], 1)
        )
        self.keys[i, :, :, place], self.values[i, :, :, place] = rotate(k, tables), v
        q = rotate(q, tables).reshape(B, self.kv_heads, -1, self.size)  # the query heads of a key are its rows
        seen = (cache[i, :, :, : place + 1] for cache in (self.keys, self.values))
        x = x + F.linear(F.scaled_dot_product_attention(q, *seen).reshape(B, -1), o)
        gate, up = F.linear(self.normed(x), gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, down)
