"""What the demo target makes of text, in torch: the drafter's training data, made beside the training itself.

A round decodes from a prefix with the target's own choices. So the main kind of example starts at every place of a
real document at once and follows the target's greedy choices from there (`follow`): each place is the end of a real
prefix. The other kind reads rows that the target sampled itself as they are (`read`).
"""

import math

import numpy as np
import torch
from drafter_model import Drafts
from export import load_exported
from model import CONFIG, Attention, TargetModel, rope_tables, rotate
from packing import DOMAINS, Documents
from torch import Tensor

BOS = CONFIG["bos_token_id"]
WINDOW = CONFIG["sliding_window"]
KV = tuple[Tensor, Tensor]


class Observer:
    """Runs the frozen target over rows of tokens."""

    def __init__(self, folder: str, steps: int):
        self.target, self.steps = TargetModel(), steps
        self.target.load_state_dict(load_exported(folder))
        self.target.requires_grad_(False)
        # What the drafter and the KV-shared layers read.
        owners = [layer.self_attn for layer in self.target.layers if layer.self_attn.owns_kv]
        self.last_owner = {attention.full: index for index, attention in enumerate(owners)}

    @torch.no_grad()
    def read(self, tokens: Tensor) -> Drafts:
        """Anchors that go on with the row itself; tokens int64 [B, L] -> A = L - K anchors."""
        anchors = tokens.shape[1] - self.steps
        hidden, kv = self._row(tokens)
        choices = self.target.logits(hidden).argmax(-1)
        following = tokens.unfold(1, self.steps, 1)[:, 1 : 1 + anchors]
        labels = choices.unfold(1, self.steps, 1)[:, 1 : 1 + anchors]
        return self._drafts(hidden, kv, following, labels)

    @torch.no_grad()
    def follow(self, tokens: Tensor) -> Drafts:
        """Anchors that go on with the target's choices; tokens int64 [B, L] -> A = L anchors."""
        hidden, kv = self._row(tokens)
        chosen, branch = [self.target.logits(hidden).argmax(-1)], [[] for _ in kv]
        for j in range(self.steps):
            chosen.append(self._branch_step(chosen[-1], j, kv, branch))
        chosen = torch.stack(chosen, dim=2)
        return self._drafts(hidden, kv, chosen[:, :, :-1], chosen[:, :, 1:])

    def _drafts(self, hidden: Tensor, kv: list[KV], tokens: Tensor, labels: Tensor) -> Drafts:
        anchors = tokens.shape[1]
        read = {full: kv[index] for full, index in self.last_owner.items()}
        kept = {full: tuple(t[:, :anchors].bfloat16() for t in pair) for full, pair in read.items()}
        return Drafts(hidden[:, :anchors].bfloat16(), tokens.int(), labels.int(), kept)

    def _row(self, tokens: Tensor) -> tuple[Tensor, list[KV]]:
        """Final hidden states [B, L, D], and keys and values [B, L, size] of every layer that owns them."""
        length = tokens.shape[1]
        tokens = torch.nn.functional.pad(tokens, (0, -length % WINDOW))
        x = self.target.embed_tokens(tokens) * CONFIG["hidden_size"] ** 0.5
        per_layer = self.target.per_layer_inputs(tokens, x)
        tables = {full: rope_tables(tokens.shape[1], full) for full in (False, True)}
        shared, kept = {}, []
        for index, layer in enumerate(self.target.layers):
            full = layer.self_attn.full
            x = layer(x, per_layer[:, :, index], tables[full], shared)
            if layer.self_attn.owns_kv:
                kept.append(tuple(t[:, :length] for t in shared[full]))
        return self.target.norm(x)[:, :length], kept

    def _branch_step(self, token: Tensor, j: int, kv: list[KV], branch: list[list[KV]]) -> Tensor:
        """The target's choice after `token` [B, A], the j-th of each anchor's own continuation; adds to `branch`."""
        anchors = token.shape[1]
        x = self.target.embed_tokens(token) * CONFIG["hidden_size"] ** 0.5
        per_layer = self.target.per_layer_inputs(token, x)
        first = 1 + j  # position of the first anchor's token
        tables = {f: tuple(t[first:] for t in rope_tables(first + anchors, f)) for f in (False, True)}
        for index, layer in enumerate(self.target.layers):
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            if attention.owns_kv:
                branch[index].append(attention.keys_values(normed, tables[attention.full]))
                owner = index
            else:
                owner = self.last_owner[attention.full]
            attended = attend(attention, normed, tables[attention.full], kv[owner], branch[owner], j)
            x = x + layer.post_attention_layernorm(attended)
            x = x + layer.post_feedforward_layernorm(layer.mlp(layer.pre_feedforward_layernorm(x)))
            gate = torch.nn.functional.gelu(layer.per_layer_input_gate(x), approximate="tanh")
            gated = layer.per_layer_projection(gate * per_layer[:, :, index])
            x = (x + layer.post_per_layer_input_norm(gated)) * layer.layer_scalar
        return self.target.logits(self.target.norm(x)).argmax(-1)


def attend(attention: Attention, x: Tensor, tables: KV, prefix: KV, branch: list[KV], j: int) -> Tensor:
    """Anchor i at position i + 1 + j sees the row's tokens 0 … i and its own j + 1 tokens."""
    batch, anchors, _ = x.shape
    q = rotate(attention.q_norm(attention.q_proj(x).unflatten(-1, (attention.heads, attention.size))), tables)
    scores = torch.bmm(q.flatten(1, 2), prefix[0].transpose(1, 2)).view(batch, anchors, attention.heads, -1)
    newest, key = torch.arange(anchors)[:, None], torch.arange(anchors)[None]
    unseen = key > newest
    if not attention.full:
        unseen = unseen | (key <= newest + 1 + j - WINDOW)
    scores = scores.masked_fill(unseen[None, :, None], -math.inf)
    own_keys, own_values = (torch.stack(parts, dim=2) for parts in zip(*branch, strict=True))  # [B, A, j + 1, size]
    scores = torch.cat([scores, q @ own_keys.transpose(-1, -2)], dim=-1)
    on_prefix, on_own = scores.softmax(-1).split([anchors, len(branch)], dim=-1)
    attended = torch.bmm(on_prefix.flatten(1, 2), prefix[1]).view_as(q) + on_own @ own_values
    return attention.o_proj(attended.flatten(2))


class DocumentRows:
    """Rows of training documents, domains in equal shares: raw text from random places after BOS; dialogues from
    their start, one after the other as in the target's training.
    """

    def __init__(self, documents: Documents, length: int, rng: np.random.Generator):
        self.pools = [documents[domain, "train"] for domain in DOMAINS]
        self.length, self.rng = length, rng

    def batch(self, size: int) -> Tensor:
        """int64 [size, length]."""
        rows = [self._row(self.pools[self.rng.integers(len(self.pools))]) for _ in range(size)]
        return torch.from_numpy(np.stack(rows).astype(np.int64))

    def _row(self, pool: list[np.ndarray]) -> np.ndarray:
        document = pool[self.rng.integers(len(pool))]
        if len(document) > 2 * self.length:
            start = self.rng.integers(1, len(document) - self.length + 2)
            return np.concatenate([[BOS], document[start : start + self.length - 1]])
        parts = [document]
        while sum(map(len, parts)) < self.length:
            parts.append(pool[self.rng.integers(len(pool))])
        return np.concatenate(parts)[: self.length]
