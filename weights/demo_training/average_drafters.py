"""Averages drafters that were trained side by side, from one start, on different text.

Local SGD (Stich 2018, arXiv 1805.09767): one process a core, which exchange nothing until they are averaged.
"""

import argparse
import shutil
from pathlib import Path

import mlx.core as mx


def average(folders: list[Path]) -> dict[str, mx.array]:
    """The mean of all floating-point tensors; the token ordering, which is the same in all, as it is."""
    drafters = [mx.load(str(folder / "model.safetensors")) for folder in folders]
    result = {}
    for name, first in drafters[0].items():
        if mx.issubdtype(first.dtype, mx.floating):
            result[name] = mx.stack([d[name].astype(mx.float32) for d in drafters]).mean(0).astype(first.dtype)
        elif all(mx.array_equal(first, d[name]) for d in drafters):
            result[name] = first
        else:
            raise SystemExit(f"{name} differs: these drafters do not come from one start")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("drafters", type=Path, nargs="+", help="folders from train_drafter.py")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(args.output / "model.safetensors"), average(args.drafters), metadata={"format": "mlx"})
    shutil.copyfile(args.drafters[0] / "config.json", args.output / "config.json")


if __name__ == "__main__":
    main()
