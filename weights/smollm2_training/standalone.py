"""A stand-alone drafter of the head's size: a small Llama with a cache of its own, trained on the same text.

What the head is compared with. `python standalone.py new` makes one, `python standalone.py train` trains it.
"""

import argparse
import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
import torch.nn.functional as F
from head import RMSNorm, distillation, linear, rope_tables, rotate
from safetensors.torch import load_file, save_file
from text import ASSISTANT, read
from torch import Tensor, nn
from train_head import EVALUATED_ROWS
from trainer import Trainer, parser, restored, train

from mtp_mlx.training.initialize import principal_directions

COUNTED_DRAFTS = 5


class Attention(nn.Module):
    def __init__(self, config: dict):
        super().__init__()
        hidden, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.size, self.theta = hidden // self.heads, config["rope_theta"]
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (linear(hidden, hidden) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        tables = rope_tables(torch.arange(L), self.size, self.theta)
        q, k, v = (layer(x).view(B, L, self.heads, self.size) for layer in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (y.transpose(1, 2) for y in (rotate(q, tables), rotate(k, tables), v))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, L, D))


class MLP(nn.Module):
    def __init__(self, config: dict):
        super().__init__()
        hidden, width = config["hidden_size"], config["intermediate_size"]
        self.gate_proj, self.up_proj, self.down_proj = (
            linear(hidden, width),
            linear(hidden, width),
            linear(width, hidden),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: dict, dropout: float):
        super().__init__()
        self.dropout = dropout
        self.self_attn, self.mlp = Attention(config), MLP(config)
        self.input_layernorm, self.post_attention_layernorm = (
            RMSNorm(config["hidden_size"], config["rms_norm_eps"]) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.self_attn(self.input_layernorm(x)))
        return x + self.drop(self.mlp(self.post_attention_layernorm(x)))

    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Body(nn.Module):
    def __init__(self, config: dict, dropout: float):
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config, dropout) for _ in range(config["num_hidden_layers"]))
        self.norm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])


class SmallLlama(nn.Module):
    def __init__(self, config: dict, dropout: float = 0.0):
        super().__init__()
        self.model = Body(config, dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Ids [B, L] -> hidden states [B, L, D] after the final norm."""
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x)
        return self.model.norm(x)

    def loss(self, soft: float, sample: Tensor, correction: Tensor, row_of: Tensor, *tensors: Tensor) -> Tensor:
        """As `head.Head.loss`, for the next token only; `tensors` are ids [B, L], top ids and probabilities
        [B, L, T], and which places count [B, L]."""
        tokens, top_ids, top_probs, counts = tensors
        own = self(tokens)
        table = F.embedding(sample, self.model.embed_tokens.weight)
        loss = distillation(own, table, correction, row_of[top_ids], top_probs, soft)
        return (loss * counts).sum() / counts.sum()


class StandaloneTrainer(Trainer):
    def __init__(self, args: argparse.Namespace):
        config = json.loads((args.start_from / "config.json").read_text("utf-8"))
        model = SmallLlama(config, args.dropout)
        model.load_state_dict(restored(args.start_from))
        super().__init__(args, model, config)
        for layer in model.model.layers:
            layer.compile(dynamic=False)
        file = read(args.text / f"{args.held_out}.npz")
        rows = np.flatnonzero(file["temp"] == 0)[:EVALUATED_ROWS]
        self.held_out = places_of(file, rows)

    def loss(self) -> Tensor:
        file = self.text.some_file()
        places = places_of(file, self.rng.choice(len(file["tokens"]), self.args.rows, replace=False))
        sampled = self.competitors(np.unique(places[1].numpy()), self.config["vocab_size"])
        return self.model.loss(self.args.soft, *sampled, *places)

    @torch.no_grad()
    def evaluate(self) -> dict:
        self.model.eval()
        tokens, top_ids, _, counts = self.held_out
        table = self.model.model.embed_tokens.weight
        hits = torch.cat([(self.model(row[None]) @ table.T).argmax(-1) for row in tokens])
        self.model.train()
        hits = (hits == top_ids[..., 0]) & counts.bool()
        end = hits.shape[1] - COUNTED_DRAFTS
        ahead = torch.stack([hits[:, 1 + j : 1 + j + end] for j in range(COUNTED_DRAFTS)]).float().cumprod(0)
        shares = [round(x, 4) for x in (ahead.sum((1, 2)) / counts[:, 1 : 1 + end].sum()).tolist()]
        return {"accepted": round(sum(shares), 3), "by position": shares}


def places_of(file: dict, rows: np.ndarray) -> list[Tensor]:
    """Ids, likeliest next ids, their probabilities, and whether the place stands in a reply."""
    arrays = file["tokens"][rows].astype(np.int64), file["top_ids"][rows].astype(np.int64)
    probs, counts = np.exp(file["top_lp"][rows].astype(np.float32)), file["role"][rows] == ASSISTANT
    return [torch.from_numpy(array) for array in (*arrays, probs, counts.astype(np.float32))]


def new(target: Path, output: Path, layers: int, hidden: int, intermediate: int) -> None:
    """A new one of the target's vocabulary; its embedding starts as the head's does."""
    of_target = json.loads((target / "config.json").read_text("utf-8"))
    kept = ("model_type", "vocab_size", "rope_theta", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings")
    config = {name: of_target[name] for name in (*kept, "bos_token_id", "eos_token_id")} | {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 64,
        "head_dim": 64,
    }
    torch.manual_seed(0)
    model = SmallLlama(config)
    table = load_file(target / "model.safetensors")["model.embed_tokens.weight"].float()
    basis = torch.from_numpy(np.array(principal_directions(mx.array(table.numpy()), hidden)))
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(table @ basis)
        model.model.norm.weight.fill_(1.0)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    output.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), output / "model.safetensors", metadata={"format": "mlx"})
    (output / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")


def main() -> None:
    if sys.argv[1:2] == ["new"]:
        new(Path(sys.argv[2]), Path(sys.argv[3]), layers=4, hidden=192, intermediate=768)
        return
    train(parser(__doc__.splitlines()[0]).parse_args(sys.argv[2:]), StandaloneTrainer)


if __name__ == "__main__":
    main()
