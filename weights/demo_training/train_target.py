"""Trains the demo target on a CPU: data-parallel processes of one thread each, bfloat16 matrix products.

The learning rate is constant, then falls linearly to zero over the last part of `--minutes` of wall-clock
time. Checkpoints are written every `--checkpoint-minutes` and resumed from by starting with the same `--run`
folder; each one is also exported to `--export-early`. At the end the model is exported to `--export-final`.
"""

import argparse
import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from export import export
from model import TargetModel
from muon import Muon, average
from packing import DOMAINS, RowStream, cached_documents, held_out_rows

WARMUP_STEPS = 50
# A paused run (SIGSTOP) must not look like a dead peer.
PEER_TIMEOUT = timedelta(hours=24)


class Trainer:
    """One process of the run; process 0 writes the log, the checkpoints and the exports."""

    def __init__(self, args: argparse.Namespace, rank: int):
        self.args, self.rank = args, rank
        torch.manual_seed(args.seed)
        self.model = TargetModel()
        named = dict(self.model.named_parameters())
        matrices = [p for name, p in named.items() if p.ndim == 2 and "embed" not in name]
        embeddings = [p for name, p in named.items() if p.ndim == 2 and "embed" in name]
        gains = [p for p in named.values() if p.ndim == 1]
        self.parameters = list(named.values())
        self.muon = Muon(matrices, args.muon_lr)
        self.adam_rates = [args.embedding_lr, args.gain_lr]
        groups = [{"params": embeddings}, {"params": gains}]
        self.adam = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.0)
        documents = cached_documents(args.documents, args.tokenizer, args.run / "tokens.npz")
        train = [ids for domain in DOMAINS for ids in documents[domain, "train"]]
        self.stream = RowStream(train, args.length, rank, args.processes, args.seed)
        self.held_out = {d: held_out_rows(documents[d, "heldout"], args.length, args.held_out_rows) for d in DOMAINS}
        self.loss = torch.compile(self.model.loss, dynamic=False) if args.compile else self.model.loss
        self.steps, self.tokens, self.earlier_seconds = 0, 0, 0.0
        self._resume()
        self.started = self.saved = time.time()

    def elapsed(self) -> float:
        """Seconds of this run by the wall clock, those before a resume included; equal on every process."""
        value = torch.tensor([self.earlier_seconds + time.time() - self.started], dtype=torch.float64)
        dist.broadcast(value, 0)
        return value.item()

    def learning_rate_scale(self, elapsed: float) -> float:
        total = self.args.minutes * 60
        left = max(0.0, (total - elapsed) / (total * self.args.decay_fraction))
        return min(1.0, left, (self.steps + 1) / WARMUP_STEPS)

    def batch_loss(self, rows: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.loss(rows[:, :-1], rows[:, 1:])

    def step(self, scale: float) -> float:
        """One optimizer step over `processes * batch` rows; returns the mean loss."""
        loss = self.batch_loss(torch.from_numpy(self.stream.batch(self.args.batch)))
        loss.backward()
        mean = average(loss, self.parameters)
        self.muon.scale = scale
        for group, rate in zip(self.adam.param_groups, self.adam_rates, strict=True):
            group["lr"] = rate * scale
        self.muon.step()
        self.adam.step()
        self.adam.zero_grad()
        for parameters in self.muon.groups.values():
            for parameter in parameters:
                parameter.grad = None
        self.steps += 1
        self.tokens += self.args.processes * self.args.batch * self.args.length
        return mean

    def evaluate(self) -> dict[str, float]:
        """Held-out loss in nats a token by domain; the processes share the rows, batch by batch.

        Gradients stay enabled: without them torch would compile the model a second time.
        """
        result = {}
        for domain, rows in self.held_out.items():
            size = self.args.batch
            batches = [rows[i : i + size] for i in range(0, len(rows) - size + 1, size)]
            sums = torch.zeros(2)
            for batch in batches[self.rank :: self.args.processes]:
                sums += torch.tensor([self.batch_loss(torch.from_numpy(batch)).item(), 1.0])
            dist.all_reduce(sums)
            result[domain] = round((sums[0] / sums[1]).item(), 4)
        return result

    def log(self, **fields: object) -> None:
        if self.rank == 0:
            with (self.args.run / "log.jsonl").open("a") as file:
                file.write(json.dumps(fields) + "\n")

    def save(self, elapsed: float, folder: Path | None) -> None:
        """Evaluates, then writes the checkpoint and, where a folder is given, the exported model."""
        self.log(step=self.steps, tokens=self.tokens, minutes=round(elapsed / 60, 1), held_out=self.evaluate())
        self.saved = time.time()
        if self.rank != 0:
            return
        state = {
            "model": self.model.state_dict(),
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": elapsed,
            "stream": (self.stream.epoch, self.stream.next_row),
        }
        torch.save(state, self.args.run / "checkpoint.new")
        os.replace(self.args.run / "checkpoint.new", self.args.run / "checkpoint.pt")
        if folder is not None:
            export(self.model.state_dict(), self.args.tokenizer, folder)

    def _resume(self) -> None:
        path = self.args.run / "checkpoint.pt"
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
        self.steps, self.tokens, self.earlier_seconds = state["steps"], state["tokens"], state["seconds"]
        self.stream.resume(*state["stream"])

    def run(self) -> None:
        window_start, window_losses = time.time(), []
        while (elapsed := self.elapsed()) < self.args.minutes * 60:
            window_losses.append(self.step(self.learning_rate_scale(elapsed)))
            if self.steps % 20 == 0:
                seconds = time.time() - window_start
                rate = len(window_losses) * self.tokens / self.steps / seconds
                loss = sum(window_losses) / len(window_losses)
                self.log(
                    step=self.steps,
                    tokens=self.tokens,
                    minutes=round(elapsed / 60, 1),
                    loss=round(loss, 4),
                    lr_scale=round(self.learning_rate_scale(elapsed), 3),
                    tokens_per_second=round(rate),
                )
                window_start, window_losses = time.time(), []
            if self._checkpoint_due():
                self.save(elapsed, self.args.export_early)
        self.save(self.elapsed(), self.args.export_final)

    def _checkpoint_due(self) -> bool:
        due = torch.tensor([float(time.time() - self.saved > self.args.checkpoint_minutes * 60)])
        dist.broadcast(due, 0)
        return bool(due.item())


def work(rank: int, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{args.run.resolve()}/peers",
        rank=rank,
        world_size=args.processes,
        timeout=PEER_TIMEOUT,
    )
    if rank == 0:
        print(f"process 0 of {args.processes}: pid {os.getpid()}", flush=True)
    Trainer(args, rank).run()
    dist.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=Path, required=True, help="documents.jsonl from corpus.py")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder from tokenizer.py")
    parser.add_argument("--run", type=Path, required=True, help="folder for tokens, log and checkpoint")
    parser.add_argument("--export-final", type=Path, required=True, help="folder for the finished model")
    parser.add_argument("--export-early", type=Path, help="folder for the model at each checkpoint")
    parser.add_argument("--minutes", type=float, required=True, help="wall-clock length of the run")
    parser.add_argument(
        "--decay-fraction", type=float, default=0.3, help="last part of the run in which the rate falls"
    )
    parser.add_argument("--checkpoint-minutes", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2, help="rows a process and step")
    parser.add_argument("--length", type=int, default=1024, help="tokens a row, a multiple of the sliding window")
    parser.add_argument("--held-out-rows", type=int, default=16, help="rows a domain for the held-out loss")
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--embedding-lr", type=float, default=4e-3, help="AdamW, embeddings")
    parser.add_argument("--gain-lr", type=float, default=1e-3, help="AdamW, norms and layer scalars")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    args.run.mkdir(parents=True, exist_ok=True)
    (args.run / "peers").unlink(missing_ok=True)
    cached_documents(args.documents, args.tokenizer, args.run / "tokens.npz")
    mp.spawn(work, (args,), nprocs=args.processes)


if __name__ == "__main__":
    main()
