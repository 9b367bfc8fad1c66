"""Trains the demo drafter on the frozen demo target in torch: what `train_drafter.py` does, several times as fast on a
CPU with bfloat16 products, and on text that is made while it trains.

Data-parallel processes of one thread each. Every process keeps a pool of rows that it fills up before each step, so
that a row is used `--visits` times. `--start-from` is a drafter of `train_drafter.py` (`--minutes 0` makes a new one).
The rates are constant, then fall linearly to zero over the last part of the wall-clock time. `--output` is written
every `--checkpoint-minutes` and at the end.
"""

import argparse
import json
import os
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from drafter_data import DocumentRows, Observer
from drafter_model import DrafterModel, Drafts
from muon import Muon, average
from packing import DOMAINS, cached_documents
from safetensors.torch import load_file, save_file

WARMUP_STEPS = 30
PEER_TIMEOUT = timedelta(hours=24)
COUNTED_DRAFTS = 3
EVALUATED_ROWS = 8  # a domain


class Pool:
    """The newest rows, and a random batch of them."""

    def __init__(self, rng: np.random.Generator, size: int):
        self.rng, self.size, self.rows = rng, size, []

    def add(self, drafts: Drafts, anchors: int) -> None:
        self.rows += list(zip(*(cut(t, anchors) for t in drafts.tensors), strict=True))
        del self.rows[: -self.size]

    def batch(self, size: int) -> list[torch.Tensor]:
        return stacked([self.rows[i] for i in self.rng.integers(len(self.rows), size=size)])


def stacked(rows: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
    """The tensors of `Drafts` of several rows."""
    batch = Drafts.of([torch.stack(tensors) for tensors in zip(*rows, strict=True)])
    batch.tokens, batch.labels = batch.tokens.long(), batch.labels.long()
    return batch.tensors


def calibrated(state: dict[str, torch.Tensor], temperature: float) -> dict[str, torch.Tensor]:
    """The same drafter with its logits divided by `temperature`, exactly so for a power of two.

    Trained on the target's likeliest token, it is surer of itself than the target is; greedy drafts stay what they are.
    """
    scaled = {"model.norm.weight": 1 / temperature, "post_projection.weight": temperature}
    return {name: value * scaled.get(name, 1) for name, value in state.items()}


def cut(tensor: torch.Tensor, anchors: int) -> torch.Tensor:
    return tensor[:, :anchors].clone()


class Trainer:
    """One process of the run; process 0 prints and writes the drafter."""

    def __init__(self, args: argparse.Namespace, rank: int):
        self.args, self.rank, self.steps = args, rank, 0
        self.rng = np.random.default_rng([args.seed, rank])
        self.config = json.loads((args.start_from / "config.json").read_text("utf-8"))
        self.model = DrafterModel(self.config)
        self.model.load_state_dict({k: v.float() for k, v in load_file(args.start_from / "model.safetensors").items()})
        self.model.masked_embedding.token_ordering = self.model.masked_embedding.token_ordering.long()
        self.observer = Observer(args.target, args.draft_steps)
        self.table = self.observer.target.embed_tokens.weight
        self.cluster_of = self.model.masked_embedding.cluster_of()
        self.weights = [args.step_decay**j for j in range(args.draft_steps)]
        self.loss = torch.compile(self.model.loss, dynamic=False)
        self._make_optimizers()
        documents = cached_documents(args.documents, args.target, args.tokens)
        self.anchors = args.length - args.draft_steps
        self.documents = DocumentRows(documents, args.length, self.rng)
        texts = [np.load(path)[:, : args.length] for path in args.text]
        self.texts = self.rng.permutation(np.concatenate(texts))[rank :: args.processes] if texts else []
        self.pool, self.added = Pool(self.rng, args.pool), 0
        self.held_out = self._held_out(documents)
        self.started = self.saved = self.logged = time.time()

    def _make_optimizers(self) -> None:
        named = dict(self.model.named_parameters())
        matrices = [p for name, p in named.items() if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in named.items() if p.ndim == 1 or "embed" in name]
        self.parameters = list(named.values())
        self.muon = Muon(matrices, self.args.muon_rate)
        self.adam = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)

    def _held_out(self, documents: dict) -> list[list[torch.Tensor]]:
        rng = np.random.default_rng(0)
        batches = []
        for domain in DOMAINS:
            only = {(d, "train"): documents[domain, "heldout"] for d in DOMAINS}
            rows = DocumentRows(only, self.args.length, rng).batch(EVALUATED_ROWS)
            drafts = self.observer.follow(rows)
            pool = Pool(rng, EVALUATED_ROWS)
            pool.add(drafts, self.anchors)
            batches.append(stacked(pool.rows))
        return batches

    def fill(self) -> None:
        """Adds the rows that keep every row at `--visits` visits."""
        wanted = self.args.batch / self.args.visits * (self.steps + 1) + self.args.batch * 4
        while self.added < wanted:
            with torch.autocast("cpu", torch.bfloat16):
                if len(self.texts) and self.rng.random() < self.args.text_share:
                    chosen = self.texts[self.rng.integers(len(self.texts), size=self.args.batch)]
                    drafts = self.observer.read(torch.from_numpy(chosen.astype(np.int64)))
                else:
                    drafts = self.observer.follow(self.documents.batch(self.args.batch))
            self.pool.add(drafts, self.anchors)
            self.added += self.args.batch

    def elapsed(self) -> float:
        """Seconds of this run; equal on every process."""
        value = torch.tensor([time.time() - self.started], dtype=torch.float64)
        dist.broadcast(value, 0)
        return value.item()

    def step(self, progress: float) -> float:
        """One optimizer step over the batches of all processes; returns the mean loss."""
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = self.loss(self.table, self.cluster_of, self.weights, *self.pool.batch(self.args.batch))
        loss.backward()
        mean = average(loss, self.parameters)
        scale = min(1.0, (1.0 - progress) / self.args.decay, (self.steps + 1) / WARMUP_STEPS)
        self.muon.scale = scale
        self.adam.param_groups[0]["lr"] = self.args.adam_rate * scale
        self.muon.step()
        self.adam.step()
        self.model.zero_grad(set_to_none=True)
        self.steps += 1
        return mean

    def evaluate(self) -> dict[str, float]:
        """Mean accepted of three drafts (full head) after every place of held-out rows, by domain."""
        result = {}
        for domain, batch in zip(DOMAINS, self.held_out, strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                _, hits = self.model.loss(self.table, self.cluster_of, self.weights, *batch)
            result[domain] = round(hits[:COUNTED_DRAFTS].cumprod(0).sum(0).mean().item(), 3)
        return result

    def report(self, loss: float, elapsed: float) -> None:
        with torch.no_grad():
            line = {"step": self.steps, "minutes": round(elapsed / 60, 1), "loss": round(loss, 3)}
            line |= {"accepted": (by := self.evaluate()), "mean": round(sum(by.values()) / len(by), 3)}
        print(json.dumps(line), flush=True)

    def save(self) -> None:
        self.args.output.mkdir(parents=True, exist_ok=True)
        state = calibrated(self.model.state_dict(), self.args.temperature)
        stored = {k: v.bfloat16() if v.is_floating_point() else v.long() for k, v in state.items()}
        save_file(stored, self.args.output / "model.new", metadata={"format": "mlx"})
        os.replace(self.args.output / "model.new", self.args.output / "model.safetensors")
        (self.args.output / "config.json").write_text(json.dumps(self.config, indent=1) + "\n", "utf-8")

    def run(self) -> None:
        total = self.args.minutes * 60
        losses = []
        while (elapsed := self.elapsed()) < total:
            self.fill()
            losses.append(self.step(elapsed / total))
            if self.rank == 0 and time.time() - self.logged > self.args.report_seconds:
                self.report(sum(losses) / len(losses), elapsed)
                self.logged, losses = time.time(), []
            if self.rank == 0 and time.time() - self.saved > self.args.checkpoint_minutes * 60:
                self.save()
                self.saved = time.time()
        if self.rank == 0:
            self.report(sum(losses) / max(1, len(losses)), total)
            self.save()


def work(rank: int, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    method = f"file://{args.output.resolve()}.peers"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=args.processes, timeout=PEER_TIMEOUT)
    Trainer(args, rank).run()
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True, help="exported target")
    parser.add_argument("--documents", type=Path, required=True, help="documents.jsonl from corpus.py")
    parser.add_argument("--tokens", type=Path, required=True, help="tokens.npz that train_target.py made of them")
    parser.add_argument("--text", type=Path, nargs="*", default=[], help="files from sample_text.py")
    parser.add_argument("--start-from", type=Path, required=True, help="drafter to go on with; its shape is kept")
    parser.add_argument("--output", type=Path, required=True, help="folder for the drafter")
    parser.add_argument("--minutes", type=float, required=True, help="wall-clock length of the run")
    parser.add_argument("--decay", type=float, default=0.7, help="last part of the time in which the rates fall to 0")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--length", type=int, default=192, help="tokens a row")
    parser.add_argument("--batch", type=int, default=4, help="rows a process and step")
    parser.add_argument("--visits", type=float, default=4, help="how often each row is trained on")
    parser.add_argument("--pool", type=int, default=1500, help="rows a process keeps")
    parser.add_argument("--text-share", type=float, default=0.4, help="share of rows that come from --text")
    parser.add_argument("--draft-steps", type=int, default=4)
    parser.add_argument("--step-decay", type=float, default=0.8, help="weight of each step relative to the one before")
    parser.add_argument("--muon-rate", type=float, default=0.03)
    parser.add_argument("--adam-rate", type=float, default=0.006)
    parser.add_argument(
        "--temperature", type=float, default=2.0, help="divides the drafter's logits when it is written"
    )
    parser.add_argument("--report-seconds", type=float, default=60)
    parser.add_argument("--checkpoint-minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    Path(f"{args.output.resolve()}.peers").unlink(missing_ok=True)
    mp.spawn(work, (args,), nprocs=args.processes)


if __name__ == "__main__":
    main()
