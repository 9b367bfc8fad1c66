"""Trains an MTP head for SmolLM2 on the text that `write_text.py` had it write.

`--output` is a drafter folder, written every `--checkpoint-minutes` and at the end; `--start-from` goes on with one.
Rates are constant, then fall linearly to zero over the last part of the wall-clock time. Text files that appear while
it runs are taken in.
"""

import argparse
import json

import numpy as np
import torch
from head import Anchors, Head
from safetensors.torch import load_file
from text import anchors_of, read
from torch import Tensor
from trainer import Trainer, parser, restored, train

EVALUATED_ROWS = 64


class HeadTrainer(Trainer):
    def __init__(self, args: argparse.Namespace):
        config = json.loads((args.start_from / "config.json").read_text("utf-8"))
        head = Head(config, args.dropout)
        head.load_state_dict(restored(args.start_from))
        super().__init__(args, head, config)
        self.table = load_file(args.target / "model.safetensors")["model.embed_tokens.weight"].float()
        self.cluster_of = head.masked_embedding.cluster_of()
        self.weights = [args.step_decay**j for j in range(args.draft_steps)]
        for layer in head.model.layers:
            layer.compile(dynamic=False)
        self.held_out = self._held_out(read(args.text / f"{args.held_out}.npz"))

    def _held_out(self, file: dict) -> list[Anchors]:
        """Greedy rows: there the drafts that agree with the text are exactly those that would be accepted."""
        rows, rng = np.flatnonzero(file["temp"] == 0)[:EVALUATED_ROWS], np.random.default_rng(0)
        chunks = rows.reshape(-1, self.args.rows)  # in the shape of a training step, which is compiled already
        return [anchors_of(file, chunk, (self.args.anchors, 0), self.args.draft_steps, rng) for chunk in chunks]

    def loss(self) -> Tensor:
        early = self.progress < self.args.early
        steps = self.args.early_steps if early else self.args.draft_steps
        replies = round(self.args.anchors * self.args.reply_share)
        anchors = self.text.batch(self.args.rows, (replies, self.args.anchors - replies), steps)
        anchors.blur(self.args.noise)
        sampled = self.competitors(np.unique(anchors.top_ids.numpy()), len(self.table))
        shares = self.args.soft, self.args.alike
        return self.model.loss(self.table, self.cluster_of, self.weights, *shares, *sampled, *anchors.tensors)

    @torch.no_grad()
    def evaluate(self) -> dict:
        """Accepted drafts an anchor with the full head and the clustered one, and the share of each position's."""
        self.model.eval()
        full, clustered = (
            torch.stack(hits, 2).mean((1, 2)) for hits in zip(*map(self._hits, self.held_out), strict=True)
        )
        self.model.train()
        return {
            "accepted": round(full.sum().item(), 3),
            "clustered": round(clustered.sum().item(), 3),
            "by position": [round(share, 3) for share in clustered.tolist()],
        }

    def _hits(self, anchors: Anchors) -> tuple[Tensor, Tensor]:
        """Share of each row's anchors whose drafts up to each step are all right [K, B]: full head, clustered head."""
        full, clustered = [], []
        for j, (own, _) in enumerate(self.model.unroll(self.table, anchors)):
            label = anchors.top_ids[:, :, j, 0]
            right = (own @ self.model.model.embed_tokens.weight.T).argmax(-1) == label
            scores = self.model.masked_embedding.centroids(own)
            best = scores.topk(self.config["centroid_intermediate_top_k"]).indices
            full.append(right & anchors.counts[:, :, j])
            clustered.append(full[-1] & (best == self.cluster_of[label][..., None]).any(-1))
        return tuple(torch.stack(hits).float().cumprod(0).mean(2) for hits in (full, clustered))


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.set_defaults(rows=16)
    options.add_argument("--anchors", type=int, default=40, help="anchors a row")
    options.add_argument("--reply-share", type=float, default=0.75, help="share of the anchors that stand in replies")
    options.add_argument(
        "--noise", type=float, default=0.15, help="in states, keys and values, relative to their spread"
    )
    options.add_argument(
        "--alike", type=float, default=1.0, help="weight of how far projected states are from the target's"
    )
    options.add_argument("--draft-steps", type=int, default=5)
    options.add_argument("--early-steps", type=int, default=3, help="draft steps in the first part of the run")
    options.add_argument("--early", type=float, default=0.6, help="share of the time that this part takes")
    options.add_argument("--step-decay", type=float, default=0.8, help="weight of each step relative to the one before")
    train(options.parse_args(), HeadTrainer)


if __name__ == "__main__":
    main()
