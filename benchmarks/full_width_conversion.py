"""Converts an E2B of full width with random weights, and reports time and memory.

    python -m benchmarks.full_width_conversion --folder SCRATCH [--size e2b]

Takes about 14 GB of disk in SCRATCH, which is left there.
"""

import argparse
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten

import mtp_weights  # noqa: F401  before MLX is used, for its BLAS
from mtp_mlx.convert import Options, convert
from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_config import TextConfig
from mtp_weights.pairs import official_config
from mtp_weights.write import write_checkpoint

BLOCK = 2**20  # random numbers that a tensor is filled with, again and again


def random_tensors(config: TextConfig) -> Iterator[tuple[str, mx.array]]:
    """Every tensor of the model in bfloat16, one after the other."""
    for name, array in tree_flatten(Gemma4(config).parameters()):
        width, rows = array.shape[-1], array.size // array.shape[-1]
        block = mx.random.normal((max(1, BLOCK // width), width), mx.bfloat16, scale=0.02, key=mx.random.key(0))
        tensor = mx.tile(block, (-(-rows // len(block)), 1))[:rows].reshape(array.shape)
        mx.eval(tensor)
        yield name, tensor


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folder", type=Path, required=True)
    options.add_argument("--size", default="e2b")
    options = options.parse_args()
    source, converted = options.folder / "source", options.folder / "converted"
    raw = official_config(f"gemma-4-{options.size}")
    if not source.exists():
        write_checkpoint(source, random_tensors(TextConfig.from_dict(raw)), raw)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    result = convert(source, converted, Options(quantize=True, q_bits=4))
    seconds = time.perf_counter() - started
    for folder in (source, converted):
        sizes = sorted(file.stat().st_size for file in folder.glob("*.safetensors"))
        print(f"{folder.name}: {len(sizes)} shards, {sum(sizes) / 1e9:.2f} GB, largest {sizes[-1] / 1e9:.2f} GB")
    print(f"{seconds:.0f} s, {result.bits_per_weight:.2f} bits a weight, peak {result.peak_memory / 1e9:.2f} GB (MLX)")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"resident at most {most * 1024 / 1e9:.2f} GB, before the conversion {resident * 1024 / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
