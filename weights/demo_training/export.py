"""Writes the trained target as a Hugging Face folder: config, bfloat16 weights, tokenizer, defaults."""

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

import torch
from model import CONFIG
from safetensors.torch import load_file, save_file

GENERATION_CONFIG = {
    "bos_token_id": 2,
    "eos_token_id": [1, 106],
    "pad_token_id": 0,
    "do_sample": True,
    "temperature": 0.5,  # at 1.0 a target this small writes nonsense words
    "top_k": 64,
    "top_p": 0.95,
}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def export(state: dict[str, torch.Tensor], tokenizer_folder: Path, output: Path) -> None:
    """Writes each file beside its place and moves it there, so that a reader never sees half a file."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as name:
        folder = Path(name)
        weights = {f"model.{key}": value.detach().bfloat16().contiguous() for key, value in state.items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
        (folder / "generation_config.json").write_text(json.dumps(GENERATION_CONFIG, indent=1) + "\n")
        for file in TOKENIZER_FILES:
            shutil.copyfile(tokenizer_folder / file, folder / file)
        for path in folder.iterdir():
            os.replace(path, output / path.name)


def load_exported(folder: Path) -> dict[str, torch.Tensor]:
    """The state of a `TargetModel` from a folder that `export` wrote, float32."""
    stored = load_file(Path(folder) / "model.safetensors")
    return {name.removeprefix("model."): value.float() for name, value in stored.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="checkpoint.pt of train_target.py")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder from tokenizer.py")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    export(torch.load(args.checkpoint, weights_only=True)["model"], args.tokenizer, args.output)


if __name__ == "__main__":
    main()
