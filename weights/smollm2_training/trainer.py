"""The training loop that the head and the stand-alone drafter share: optimizers, sampled softmax, clock, checkpoints.

It knows nothing of what is trained. A subclass makes the model, the loss of a step, and what is reported.
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
from muon import Muon, average
from safetensors.torch import load_file, save_file
from text import Text
from torch import Tensor, nn

torch._dynamo.config.recompile_limit = 32  # one for each length of rows
WARMUP_STEPS = 30
USAGE_STEPS = 200  # steps after which the frequencies of tokens are counted again
PEER_TIMEOUT = timedelta(minutes=10)  # the first step of a process compiles


class Trainer:
    """One process of a run that trains `model` for `args.minutes`; process 0 reports and writes."""

    def __init__(self, args: argparse.Namespace, model: nn.Module, config: dict):
        self.args, self.model, self.config, self.steps = args, model, config, 0
        self.rank, self.progress = dist.get_rank(), 0.0
        self.rng = np.random.default_rng([args.seed, self.rank])
        self.text = Text(args.text, args.held_out, self.rng)
        self.text.refresh()
        named = dict(model.named_parameters())
        matrices = [p for name, p in named.items() if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in named.items() if p.ndim == 1 or "embed" in name]
        self.parameters = list(named.values())
        self.muon = Muon(matrices, args.muon_rate, dtype=torch.float32)
        self.adam = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
        self.started = self.saved = self.logged = time.time()

    def loss(self) -> Tensor:
        """Of one step, on a new batch."""
        raise NotImplementedError

    def evaluate(self) -> dict:
        """What to report beside the loss."""
        raise NotImplementedError

    def competitors(self, wanted: np.ndarray, vocab: int) -> tuple[Tensor, Tensor, Tensor]:
        """The ids that compete in a step: `wanted`, some that are often used, and some of all.

        Returns:
            Ids [S], the correction of their logits [S], and the place of each id of the vocabulary among them [V].
        """
        if self.steps % USAGE_STEPS == 0:
            usage = self.text.usage(vocab).astype(np.float64) ** 0.75 + 1e-3
            self.usage = usage / usage.sum()
        drawn = self.rng.choice(vocab, self.args.negatives, p=self.usage)
        drawn = np.concatenate([drawn, self.rng.integers(vocab, size=self.args.negatives)])
        extra = np.setdiff1d(drawn, wanted)
        extra = self.rng.permutation(extra)[: self.args.competitors - len(wanted)]
        chance = 1 - ((1 - self.usage[extra]) * (1 - 1 / vocab)) ** self.args.negatives
        ids = np.concatenate([wanted, extra])
        missing = self.args.competitors - len(ids)  # filled up, so that every step has the same shapes
        row_of = np.zeros(vocab, np.int64)
        row_of[ids] = np.arange(len(ids))
        correction = np.concatenate([np.zeros(len(wanted)), np.log(chance), np.full(missing, 1e9)])
        ids = np.concatenate([ids, np.zeros(missing, ids.dtype)])
        return torch.from_numpy(ids), torch.from_numpy(correction).float(), torch.from_numpy(row_of)

    def elapsed(self) -> float:
        """Seconds of this run; equal on every process."""
        value = torch.tensor([time.time() - self.started], dtype=torch.float64)
        dist.broadcast(value, 0)
        return value.item()

    def step(self) -> float:
        """One step over the batches of all processes -> the mean loss."""
        loss = self.loss()
        loss.backward()
        mean = average(loss, self.parameters)
        scale = min(1.0, (1.0 - self.progress) / self.args.decay, (self.steps + 1) / WARMUP_STEPS)
        self.muon.scale = scale
        self.adam.param_groups[0]["lr"] = self.args.adam_rate * scale
        self.muon.step()
        self.adam.step()
        self.model.zero_grad(set_to_none=True)
        self.steps += 1
        return mean

    def report(self, losses: list[float]) -> None:
        line = {"step": self.steps, "minutes": round((time.time() - self.started) / 60, 1)}
        line |= {"loss": round(sum(losses) / max(1, len(losses)), 3), **self.evaluate(), "tokens": len(self.text)}
        print(json.dumps(line), flush=True)

    def save(self) -> None:
        self.args.output.mkdir(parents=True, exist_ok=True)
        state = {name: stored(tensor) for name, tensor in self.model.state_dict().items()}
        save_file(state, self.args.output / "model.new", metadata={"format": "mlx"})
        os.replace(self.args.output / "model.new", self.args.output / "model.safetensors")
        (self.args.output / "config.json").write_text(json.dumps(self.config, indent=1) + "\n", "utf-8")

    def run(self) -> None:
        total, losses = self.args.minutes * 60, []
        if self.rank == 0:
            self.report(losses)
        while (elapsed := self.elapsed()) < total:
            self.progress = elapsed / total
            losses.append(self.step())
            if time.time() - self.logged > self.args.report_seconds:
                self.text.refresh()
                if self.rank == 0:
                    self.report(losses)
                self.logged, losses = time.time(), []
            if self.rank == 0 and time.time() - self.saved > self.args.checkpoint_minutes * 60:
                self.save()
                self.saved = time.time()
        if self.rank == 0:
            self.report(losses)
            self.save()


def stored(tensor: Tensor) -> Tensor:
    return tensor.bfloat16() if tensor.is_floating_point() else tensor.int()


def restored(folder: Path) -> dict[str, Tensor]:
    """The tensors of `folder` as they are trained: in float32."""
    state = load_file(folder / "model.safetensors")
    return {name: tensor.float() if tensor.is_floating_point() else tensor.long() for name, tensor in state.items()}


def work(rank: int, args: argparse.Namespace, kind: type[Trainer]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(args.seed + rank)  # other noise in each
    method = f"file://{args.output.resolve()}.peers"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=args.processes, timeout=PEER_TIMEOUT)
    kind(args).run()
    dist.destroy_process_group()


def train(args: argparse.Namespace, kind: type[Trainer]) -> None:
    """Runs a trainer of `kind` in each of `args.processes` processes."""
    peers = Path(f"{args.output.resolve()}.peers")
    peers.parent.mkdir(parents=True, exist_ok=True)
    peers.unlink(missing_ok=True)
    mp.spawn(work, (args, kind), nprocs=args.processes)
    peers.unlink(missing_ok=True)


def parser(description: str) -> argparse.ArgumentParser:
    """The options of both."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--target", type=Path, required=True, help="folder of the target")
    result.add_argument("--text", type=Path, required=True, help="folder that write_text.py fills")
    result.add_argument("--held-out", required=True, help="the file of that folder to evaluate on, without .npz")
    result.add_argument("--start-from", type=Path, required=True, help="drafter to go on with; its shape is kept")
    result.add_argument("--output", type=Path, required=True, help="folder for the drafter")
    result.add_argument("--minutes", type=float, required=True, help="wall-clock length of the run")
    result.add_argument("--decay", type=float, default=0.7, help="last part of the time in which the rates fall to 0")
    result.add_argument("--rows", type=int, default=8, help="rows a process and step")
    result.add_argument("--processes", type=int, default=2, help="one thread each")
    result.add_argument("--soft", type=float, default=0.5, help="share of the loss that imitates the distribution")
    result.add_argument("--negatives", type=int, default=2500, help="ids drawn by usage, and as many evenly")
    result.add_argument("--competitors", type=int, default=4096, help="ids that compete in a step")
    result.add_argument("--muon-rate", type=float, default=0.04)
    result.add_argument("--adam-rate", type=float, default=0.008)
    result.add_argument("--dropout", type=float, default=0.1, help="share of what a layer adds that is left out")
    result.add_argument("--report-seconds", type=float, default=240)
    result.add_argument("--checkpoint-minutes", type=float, default=5)
    result.add_argument("--seed", type=int, default=0)
    return result
