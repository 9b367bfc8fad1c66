"""The demo drafter as a compact torch module: the same recursion as `mtp_mlx.training.unroll`, in bfloat16 products.

Parameter names are those of the checkpoint. `python -m benchmarks.demo_acceptance` tells what its drafts are worth.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from model import MLP, RMSNorm, linear, rope_tables, rotate
from torch import Tensor, nn


@dataclass
class Drafts:
    """What B rows of A anchors teach. Anchor i drafts after token N = i + 1, from the keys of tokens 0 … i.

    Attributes:
        hidden: the target's state at token i [B, A, D].
        tokens: what step j reads, [B, A, K] (int64); column 0 is token N.
        labels: what the target would choose after it [B, A, K].
        kv: by kind (full or not), keys and values of tokens 0 … A - 1, both [B, A, head_dim].
    """

    hidden: Tensor
    tokens: Tensor
    labels: Tensor
    kv: dict[bool, tuple[Tensor, Tensor]]

    @property
    def tensors(self) -> list[Tensor]:
        return [self.hidden, self.tokens, self.labels, *self.kv[False], *self.kv[True]]

    @classmethod
    def of(cls, tensors: list[Tensor]) -> "Drafts":
        hidden, tokens, labels, *kv = tensors
        return cls(hidden, tokens, labels, {False: tuple(kv[:2]), True: tuple(kv[2:])})


class Attention(nn.Module):
    """Queries only; keys and values are the target's."""

    def __init__(self, hidden: int, heads: int, size: int):
        super().__init__()
        self.heads, self.size = heads, size
        self.q_proj, self.o_proj = linear(hidden, heads * size), linear(heads * size, hidden)
        self.q_norm = RMSNorm(size)

    def forward(
        self, x: Tensor, tables: tuple[Tensor, Tensor], kv: tuple[Tensor, Tensor], hidden_keys: Tensor
    ) -> Tensor:
        """x [B, A, hidden]; `hidden_keys` [A, A] marks what each anchor may not see."""
        batch, anchors, _ = x.shape
        k, v = kv
        q = rotate(self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.size))), tables).to(k.dtype)
        scores = torch.bmm(q.flatten(1, 2), k.transpose(1, 2)).view(batch, anchors, self.heads, anchors).float()
        weights = scores.masked_fill(hidden_keys[None, :, None], -math.inf).softmax(-1).to(v.dtype)
        return self.o_proj(torch.bmm(weights.flatten(1, 2), v).view(batch, anchors, -1))


class Layer(nn.Module):
    def __init__(self, text: dict, kind: str):
        super().__init__()
        hidden = text["hidden_size"]
        self.full = kind == "full_attention"
        size = text["global_head_dim"] if self.full else text["head_dim"]
        self.self_attn = Attention(hidden, text["num_attention_heads"], size)
        self.mlp = MLP(text["intermediate_size"], hidden)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(hidden), RMSNorm(hidden)
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = RMSNorm(hidden), RMSNorm(hidden)
        self.layer_scalar = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, tables: dict, kv: dict, masks: dict) -> Tensor:
        attended = self.self_attn(self.input_layernorm(x), tables[self.full], kv[self.full], masks[self.full])
        x = x + self.post_attention_layernorm(attended)
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return x * self.layer_scalar


class Body(nn.Module):
    def __init__(self, text: dict):
        super().__init__()
        self.embed_tokens = nn.Embedding(text["vocab_size"], text["hidden_size"])
        self.layers = nn.ModuleList(Layer(text, kind) for kind in text["layer_types"])
        self.norm = RMSNorm(text["hidden_size"])


class ClusteredHead(nn.Module):
    def __init__(self, hidden: int, vocab: int, clusters: int):
        super().__init__()
        self.centroids = linear(hidden, clusters)
        self.register_buffer("token_ordering", torch.arange(vocab))

    def cluster_of(self) -> Tensor:
        """The cluster of each token [V]."""
        return self.token_ordering.argsort() // (len(self.token_ordering) // self.centroids.out_features)


class DrafterModel(nn.Module):
    """`config` is a drafter's config.json."""

    def __init__(self, config: dict):
        super().__init__()
        self.text = config["text_config"]
        hidden, backbone = self.text["hidden_size"], config["backbone_hidden_size"]
        self.model = Body(self.text)
        self.pre_projection, self.post_projection = linear(2 * backbone, hidden), linear(hidden, backbone)
        self.masked_embedding = ClusteredHead(hidden, self.text["vocab_size"], config["num_centroids"])

    def unroll(self, target_table: Tensor, drafts: Drafts) -> Iterator[Tensor]:
        """The drafter's own hidden state [B, A, hidden] of each step."""
        anchors = drafts.hidden.shape[1]
        newest, key = torch.arange(anchors)[:, None], torch.arange(anchors)[None]
        masks = {True: key > newest, False: (key > newest) | (key <= newest - self.text["sliding_window"] - 1)}
        # Every step rotates to the index of the token that the anchor drafts after.
        tables = {full: tuple(t[1:] for t in rope_tables(anchors + 1, full)) for full in (False, True)}
        hidden = drafts.hidden.float()
        for j in range(drafts.tokens.shape[2]):
            embedded = F.embedding(drafts.tokens[:, :, j], target_table) * target_table.shape[1] ** 0.5
            x = self.pre_projection(torch.cat([embedded, hidden], dim=-1)).float()
            for layer in self.model.layers:
                x = layer(x, tables, drafts.kv, masks)
            own = self.model.norm(x)
            yield own
            hidden = self.post_projection(own).float()

    def loss(self, target_table: Tensor, cluster_of: Tensor, weights: list[float], *tensors: Tensor) -> tuple:
        """Mean cross-entropy in nats a draft, and how often each step agrees with the target [K]."""
        drafts = Drafts.of(list(tensors))
        total, agreement = 0.0, []
        for j, own in enumerate(self.unroll(target_table, drafts)):
            labels = drafts.labels[:, :, j].flatten()
            logits = F.linear(own, self.model.embed_tokens.weight).flatten(0, 1).float()
            clusters = self.masked_embedding.centroids(own.detach()).flatten(0, 1).float()
            loss = F.cross_entropy(logits, labels) + F.cross_entropy(clusters, cluster_of[labels])
            total = total + weights[j] * loss
            agreement.append((logits.detach().argmax(-1) == labels).float())
        return total / sum(weights), torch.stack(agreement)
