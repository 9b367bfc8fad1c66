"""Trains the demo drafter on the frozen demo target with `mtp_mlx.training`.

The text is rows that `sample_text.py` sampled from a target (an earlier state of it will do: labels come from the
target given here), and rows of the training documents themselves.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path

import mtp_mlx  # loads OpenBLAS, before MLX is imported

# isort: split
import mlx.core as mx
import numpy as np
from packing import cached_documents
from prompts import PromptSource

from mtp_mlx.models.gemma4_config import AssistantConfig
from mtp_mlx.models.target import Target
from mtp_mlx.training import (
    Batches,
    Objective,
    Observations,
    Rows,
    Shape,
    Store,
    Trainer,
    drafter_config,
    new_drafter,
    observe,
    save_drafter,
)
from mtp_mlx.training.examples import Examples
from mtp_mlx.training.fingerprint import of_arrays
from mtp_mlx.training.trainer import linear_decay

HELD_BACK_ROWS = 16
REPORT_SECONDS = 45


def start(target: Target, args: argparse.Namespace):
    """The drafter to train, and its config.json."""
    if args.start_from is None:
        shape = Shape(args.hidden, args.layers, args.intermediate, args.heads, args.clusters, args.top_clusters)
        made = drafter_config(target.config, shape)
        return new_drafter(target, AssistantConfig.from_dict(made)), made
    drafter = mtp_mlx.load_drafter(args.start_from, target)
    return drafter, json.loads((args.start_from / "config.json").read_text("utf-8"))


def text_rows(args: argparse.Namespace) -> Rows:
    """Rows of sampled text and of documents, in random order; each counts as one document."""
    rng = np.random.default_rng(args.seed)
    parts = [np.load(path)[:, : args.length].astype(np.int32) for path in args.text]
    if args.document_rows:
        documents = cached_documents(args.documents, args.target, args.tokens)
        parts.append(PromptSource(documents, rng).batch(args.document_rows, args.length))
    tokens = rng.permutation(np.concatenate(parts))
    return Rows(tokens, np.ones_like(tokens))


def observed(target: Target, rows: Rows, folder: Path | None) -> Observations:
    """What the target makes of the text, kept in `folder` between runs where one is given."""
    if folder is None:
        return observe(target, rows)
    store = Store(folder, of_arrays(rows.tokens), rows)
    store.fill(target, top_k=1, follow=0, progress=lambda done, total: None)
    return store.open()


def train(trainer: Trainer, batches: Batches, held_back: Examples, args: argparse.Namespace) -> None:
    """Trains for `--minutes` of CPU time, which stands still while the process is paused."""
    started = logged = time.process_time()
    total = args.minutes * 60
    while (now := time.process_time()) - started <= total:
        loss, _ = trainer.step(batches[trainer.steps], (now - started) / total)
        if now - logged > REPORT_SECONDS:
            report(trainer, loss, held_back, now - started)
            logged = now


def report(trainer: Trainer, loss: float, held_back: Examples, seconds: float) -> None:
    held_loss, accepted = trainer.evaluate(held_back)
    line = {"step": trainer.steps, "seconds": round(seconds), "loss": round(loss, 4), "held_back": round(held_loss, 4)}
    line["accepted"] = [round(a, 3) for a in accepted]
    print(json.dumps(line), flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True, help="exported target")
    parser.add_argument("--documents", type=Path, required=True, help="documents.jsonl from corpus.py")
    parser.add_argument("--tokens", type=Path, required=True, help="tokens.npz that train_target.py made of them")
    parser.add_argument("--text", type=Path, nargs="*", default=[], help="files from sample_text.py")
    parser.add_argument("--document-rows", type=int, default=0, help="rows of training documents to add")
    parser.add_argument("--output", type=Path, required=True, help="folder for the drafter")
    parser.add_argument("--start-from", type=Path, help="drafter to go on with; its shape is kept")
    parser.add_argument("--observed", type=Path, help="folder that keeps the target's view of the text")
    parser.add_argument("--minutes", type=float, required=True, help="CPU time of training, without the target's pass")
    parser.add_argument("--length", type=int, default=192, help="tokens a row")
    parser.add_argument("--batch", type=int, default=4, help="rows a step")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--intermediate", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2, help="the last reads full attention, the others sliding")
    parser.add_argument("--clusters", type=int, default=128)
    parser.add_argument("--top-clusters", type=int, default=8)
    parser.add_argument("--draft-steps", type=int, default=4)
    parser.add_argument("--muon-rate", type=float, default=0.04)
    parser.add_argument("--adam-rate", type=float, default=0.012)
    parser.add_argument("--decay", type=float, default=0.4, help="last part of the time in which the rates fall to 0")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    mx.random.seed(args.seed)
    target, _ = mtp_mlx.load_model(args.target)
    drafter, made = start(target, args)
    started = time.time()
    observations = observed(target, text_rows(args), args.observed)
    print(f"{len(observations)} rows ready after {time.time() - started:.0f} s", flush=True)
    batches = Batches(
        observations.take(slice(HELD_BACK_ROWS, None)),
        drafter,
        size=args.batch,
        num_steps=args.draft_steps,
        seed=args.seed,
    )
    held_back = Batches(observations, drafter, size=1, num_steps=args.draft_steps, seed=0).rows(
        np.arange(HELD_BACK_ROWS)
    )
    objective = Objective(num_steps=args.draft_steps)
    schedule = partial(linear_decay, fraction=args.decay)
    trainer = Trainer(drafter, target, objective, muon_rate=args.muon_rate, adam_rate=args.adam_rate, schedule=schedule)
    train(trainer, batches, held_back, args)
    save_drafter(drafter, made, args.output)


if __name__ == "__main__":
    main()
