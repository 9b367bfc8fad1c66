"""Does `mtp train --init` bring back what a fine-tune takes from a drafter?

The demo target is fine-tuned with a LoRA (mlx-lm's own trainer) on text unlike what it knows. The drafter that was
trained for the untouched target is measured with both on held-out text of that kind, then trained on with the
fine-tuned one.
"""

import argparse
import json
import random
import subprocess
import sys
import time
import types
from pathlib import Path

import mtp_mlx  # loads OpenBLAS, before MLX is imported

# isort: split
import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.lora import CONFIG_DEFAULTS, train_model
from mlx_lm.tuner.datasets import load_dataset

from mtp_mlx.training import Batches, Objective, evaluate, observe, pack, read_documents
from mtp_mlx.training.rows import document_ids
from mtp_weights.pairs import DEMO_DRAFTER, DEMO_TARGET, bundled_folder

PASSAGE = 300  # characters
DRAFTS = 4


def write_data(files: list[Path], folder: Path, passages: int, seed: int) -> None:
    """Passages of the files as mlx-lm wants them, whole files held out for validation."""
    rng = random.Random(seed)
    files = sorted(files)
    rng.shuffle(files)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part, count in (
        ("valid", files[::6], passages // 8),
        ("train", [f for f in files if f not in files[::6]], passages),
    ):
        texts = [file.read_text("utf-8", "ignore") for file in part]
        cut = [text[i : i + PASSAGE] for text in texts for i in range(0, len(text) - PASSAGE, PASSAGE)]
        chosen = rng.sample(cut, min(count, len(cut)))
        lines = (json.dumps({"text": passage}) + "\n" for passage in chosen)
        (folder / f"{name}.jsonl").write_text("".join(lines), "utf-8")


def fine_tune(data: Path, adapters: Path, options: argparse.Namespace) -> None:
    """What `mlx_lm.lora --train` does."""
    model, tokenizer = mlx_lm.load(str(bundled_folder(DEMO_TARGET)))
    iters = options.lora_steps
    settings = {"data": str(data), "adapter_path": str(adapters), "iters": iters, "max_seq_length": options.length}
    settings |= {"batch_size": 2, "learning_rate": 2e-3, "num_layers": options.lora_layers, "val_batches": 2}
    settings |= {"steps_per_eval": iters, "save_every": iters, "steps_per_report": 10, "train": True}
    settings |= {"lora_parameters": {"rank": 16, "dropout": 0.0, "scale": 20.0}}
    args = types.SimpleNamespace(**{**CONFIG_DEFAULTS, **settings})
    train, valid, _ = load_dataset(args, tokenizer)
    train_model(args, model, train, valid)


def acceptance(data: Path, drafter: str, adapters: Path | None, length: int, rows: int) -> list[float]:
    """Share of the places of held-out text at which drafts 1 … j are all accepted, by j."""
    target, tokenizer = mtp_mlx.load(DEMO_TARGET, adapters)
    documents = read_documents(data).valid
    packed = pack((document_ids(each, tokenizer) for each in documents), length, tokenizer.bos_token_id)
    observed = observe(target, packed.take(slice(rows)), follow=DRAFTS, stop_ids=tokenizer.eos_token_ids)
    loaded = mtp_mlx.load_drafter(drafter, target)
    found = evaluate(loaded, target, Objective(DRAFTS), Batches(observed, loaded, size=1, num_steps=DRAFTS, seed=0))
    return list(found.accepted)


def realign(data: Path, adapters: Path, output: Path, args: argparse.Namespace) -> None:
    command = ["train", "--model", DEMO_TARGET, "--adapter-path", adapters, "--init", DEMO_DRAFTER, "--data", data]
    command += ["--output", output, "--iters", args.steps, "--max-seq-length", args.length, "--val-batches", 2]
    command += ["--learning-rate", args.learning_rate, "--steps-per-eval", args.steps]
    entry = "from mtp_cli.main import run; run()"
    subprocess.run([sys.executable, "-c", entry, *map(str, command)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="files of one kind")
    parser.add_argument("--work", type=Path, required=True, help="folder for data, adapters and drafter")
    parser.add_argument("--passages", type=int, default=400)
    parser.add_argument("--lora-steps", type=int, default=120)
    parser.add_argument("--lora-layers", type=int, default=4, help="the last ones; the fewer, the faster")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=8, help="held-out rows to measure on")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    mx.random.seed(args.seed)
    np.random.seed(args.seed)
    data, adapters, output = (args.work / name for name in ("data", "adapters", "drafter"))
    started = time.process_time()
    if not (adapters / "adapters.safetensors").exists():
        write_data(args.text, data, args.passages, args.seed)
        fine_tune(data, adapters, args)
    print(f"fine-tuned; {time.process_time() - started:.0f} s of CPU time", flush=True)
    realign(data, adapters, output, args)
    pairs = {
        "target as it was, its drafter": (DEMO_DRAFTER, None),
        "fine-tuned target, the same drafter": (DEMO_DRAFTER, adapters),
        "fine-tuned target, drafter trained on": (str(output), adapters),
    }
    for name, (drafter, adapter) in pairs.items():
        by_position = acceptance(data, drafter, adapter, args.length, args.rows)
        shares = " ".join(f"{share:.3f}" for share in by_position)
        print(f"{name}: {sum(by_position):.2f} drafts accepted a round ({shares})", flush=True)


if __name__ == "__main__":
    main()
