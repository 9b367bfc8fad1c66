"""An MTP head for a target whose layers all attend to everything, as a torch module.

The same recursion as `mtp_mlx.training.unroll`, at chosen places (*anchors*) of each row instead of all of them, and a
loss over a sample of the vocabulary. Parameter names are those of the checkpoint.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from drafter_model import ClusteredHead
from torch import Tensor, nn


@dataclass
class Anchors:
    """What B rows teach at M anchors each. The anchor at i drafts after token i + 1, from the keys of tokens 0 … i.

    Attributes:
        place: i of each anchor [B, M].
        hidden: the target's state at i, after its final norm [B, M, D].
        tokens: what draft step j reads, token i + 1 + j [B, M, K].
        states: the target's state after it [B, M, K, D].
        top_ids: what the target finds likeliest after it, best first [B, M, K, T].
        top_probs: how likely [B, M, K, T].
        counts: whether the step teaches anything [B, M, K].
        keys, values: of the layer that the head reads, both [B, kv_heads, L, head_dim].
    """

    place: Tensor
    hidden: Tensor
    tokens: Tensor
    states: Tensor
    top_ids: Tensor
    top_probs: Tensor
    counts: Tensor
    keys: Tensor
    values: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        return list(vars(self).values())

    def blur(self, noise: float) -> None:
        """Adds to what the head reads of the target, relative to its spread, so that it cannot be known by heart."""
        for name in ("hidden", "keys", "values"):
            exact = getattr(self, name)
            setattr(self, name, exact + noise * exact.std() * torch.randn_like(exact))


def linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=inputs**-0.5)
    return layer


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rope_tables(places: Tensor, size: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin [..., size / 2] at `places` [...]."""
    angles = places[..., None].float() * theta ** -(torch.arange(0, size, 2).float() / size)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """RoPE over x [..., heads, size] with tables [..., size / 2]."""
    cos, sin = (table.unsqueeze(-2) for table in tables)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Attention(nn.Module):
    """Queries only; keys and values are the target's. The scale is 1, as in Gemma 4."""

    def __init__(self, text: dict):
        super().__init__()
        self.heads, self.kv_heads, self.size = (
            text["num_attention_heads"],
            text["num_key_value_heads"],
            text["global_head_dim"],
        )
        self.q_proj = linear(text["hidden_size"], self.heads * self.size)
        self.o_proj = linear(self.heads * self.size, text["hidden_size"])
        self.q_norm = RMSNorm(self.size)
        nn.init.constant_(self.q_norm.weight, self.size**-0.5)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """x [B, M, hidden], `mask` [B, M, L] added to the scores -> [B, M, hidden]."""
        B, M, _ = x.shape
        groups = self.heads // self.kv_heads
        q = rotate(self.q_norm(self.q_proj(x).view(B, M, self.heads, self.size)), tables)
        q = (
            q.view(B, M, self.kv_heads, groups, self.size)
            .permute(0, 2, 3, 1, 4)
            .reshape(B, self.kv_heads, -1, self.size)
        )
        scores = (q @ keys.transpose(2, 3)).view(B, self.kv_heads, groups, M, -1) + mask[:, None, None]
        out = scores.softmax(-1).view(B, self.kv_heads, groups * M, -1) @ values
        out = out.view(B, self.kv_heads, groups, M, self.size).permute(0, 3, 1, 2, 4)
        return self.o_proj(out.reshape(B, M, -1))


class MLP(nn.Module):
    def __init__(self, text: dict):
        super().__init__()
        hidden, width = text["hidden_size"], text["intermediate_size"]
        self.gate_proj, self.up_proj, self.down_proj = (
            linear(hidden, width),
            linear(hidden, width),
            linear(width, hidden),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, text: dict, dropout: float):
        super().__init__()
        self.dropout = dropout
        self.self_attn, self.mlp = Attention(text), MLP(text)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(text["hidden_size"]), RMSNorm(text["hidden_size"])
        self.pre_feedforward_layernorm = RMSNorm(text["hidden_size"])
        self.post_feedforward_layernorm = RMSNorm(text["hidden_size"])
        self.layer_scalar = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, *seen) -> Tensor:
        x = x + self.drop(self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), *seen)))
        x = x + self.drop(self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x))))
        return x * self.layer_scalar

    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Body(nn.Module):
    def __init__(self, text: dict, dropout: float):
        super().__init__()
        self.embed_tokens = nn.Embedding(text["vocab_size"], text["hidden_size"])
        self.layers = nn.ModuleList(Layer(text, dropout) for _ in text["layer_types"])
        self.norm = RMSNorm(text["hidden_size"])


class Head(nn.Module):
    """`config` is the head's config.json.

    Args:
        dropout: share of what a layer adds that is left out in training.
    """

    def __init__(self, config: dict, dropout: float = 0.0):
        super().__init__()
        self.text = config["text_config"]
        hidden, backbone = self.text["hidden_size"], config["backbone_hidden_size"]
        self.model = Body(self.text, dropout)
        self.pre_projection, self.post_projection = linear(2 * backbone, hidden), linear(hidden, backbone)
        self.masked_embedding = ClusteredHead(hidden, self.text["vocab_size"], config["num_centroids"])

    def unroll(self, target_table: Tensor, anchors: Anchors) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each draft step the own hidden state [B, M, hidden], and what the next step reads of it [B, M, D]."""
        length = anchors.keys.shape[2]
        unseen = torch.arange(length) > anchors.place[..., None]
        mask = torch.zeros(unseen.shape).masked_fill(unseen, -math.inf)
        rope = self.text["rope_parameters"]["full_attention"]
        tables = rope_tables(anchors.place + 1, self.text["global_head_dim"], rope["rope_theta"])
        hidden = anchors.hidden
        for j in range(anchors.tokens.shape[2]):
            x = self.pre_projection(torch.cat([F.embedding(anchors.tokens[:, :, j], target_table), hidden], dim=-1))
            for layer in self.model.layers:
                x = layer(x, tables, anchors.keys, anchors.values, mask)
            own = self.model.norm(x)
            hidden = self.post_projection(own)
            yield own, hidden

    def loss(
        self,
        target_table: Tensor,
        cluster_of: Tensor,
        weights: list[float],
        soft: float,
        alike: float,
        sample: Tensor,
        correction: Tensor,
        row_of: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        """Sampled cross-entropy in nats a draft.

        Args:
            weights: of each draft step.
            soft: share of the loss that compares with the target's distribution over its likeliest tokens instead of
                its choice.
            alike: weight of how far the projected states are from the target's own, squared and relative to their
                variance (after Li et al. 2024, "EAGLE: Speculative sampling requires rethinking feature uncertainty").
            sample: ids that compete [S]: all of `top_ids` and some of the others.
            correction: subtracted from their logits: log of the chance to be in the sample (Jean et al. 2015, "On using
                very large target vocabulary for neural machine translation").
            row_of: place in `sample` of every id that is there [V].
        """
        anchors = Anchors(*tensors)
        table = F.embedding(sample, self.model.embed_tokens.weight)
        total = 0.0
        for j, (own, state) in enumerate(self.unroll(target_table, anchors)):
            top_ids, counts = anchors.top_ids[:, :, j], anchors.counts[:, :, j].float()
            loss = distillation(own, table, correction, row_of[top_ids], anchors.top_probs[:, :, j], soft)
            clusters = self.masked_embedding.centroids(own.detach()).transpose(1, 2)
            loss = loss + F.cross_entropy(clusters, cluster_of[top_ids[..., 0]], reduction="none")
            wanted = anchors.states[:, :, j]
            loss = loss + alike * (state - wanted).pow(2).mean(-1) / wanted.var()
            total = total + weights[j] * (loss * counts).sum() / counts.sum().clamp(min=1)
        return total / sum(weights)


@torch.compile(dynamic=False)
def distillation(own: Tensor, table: Tensor, correction: Tensor, rows: Tensor, probs: Tensor, soft: float) -> Tensor:
    """Cross-entropy [B, M] of states `own` [B, M, D] to the target's likeliest tokens.

    Args:
        table: embeddings of the competing tokens [S, D]; `correction` [S] is subtracted from their logits.
        rows: which of them the likeliest are, best first [B, M, T]; `probs` says how likely.
        soft: share of the loss that compares with all of them instead of the first.
    """
    logp = (F.linear(own, table) - correction).log_softmax(-1)
    top = logp.gather(-1, rows)
    return -soft * (top * probs).sum(-1) / probs.sum(-1) - (1 - soft) * top[..., 0]
