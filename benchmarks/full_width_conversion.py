"""Converts a pair of full width with random weights, reports time and memory, and decodes with the result.

    python -m benchmarks.full_width_conversion --folder SCRATCH [--size e2b]

Takes about 14 GB of disk in SCRATCH for an E2B, which is left there.
"""

import argparse
import math
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx

from mtp_mlx import generate_step, load_drafter, load_model
from mtp_mlx.convert import Options, convert
from mtp_mlx.memory import parameter_shapes
from mtp_weights.pairs import official_config
from mtp_weights.write import write_checkpoint

BLOCK = 2**20  # random numbers that a tensor is filled with, again and again
PROMPT = [2, 1000, 2000, 3000, 4000, 5000]
TOKENS, DRAFTS = 8, 2


def random_tensors(shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, mx.array]]:
    """Every tensor in bfloat16, one after the other; a token ordering is a permutation."""
    for name, shape in shapes.items():
        size, width = math.prod(shape), shape[-1]
        if name.endswith("token_ordering"):
            yield name, mx.random.permutation(size).astype(mx.int64)
            continue
        rows = size // width
        block = mx.random.normal((max(1, BLOCK // width), width), mx.bfloat16, scale=0.02, key=mx.random.key(0))
        tensor = mx.tile(block, (-(-rows // len(block)), 1))[:rows].reshape(shape)
        mx.eval(tensor)
        yield name, tensor


def report_conversion(source: Path, converted: Path) -> None:
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    result = convert(source, converted, Options(quantize=True, q_bits=4))
    seconds = time.perf_counter() - started
    for folder in (source, converted):
        sizes = sorted(file.stat().st_size for file in folder.glob("*.safetensors"))
        print(f"{folder.name}: {len(sizes)} shards, {sum(sizes) / 1e9:.2f} GB, largest {sizes[-1] / 1e9:.2f} GB")
    print(f"{seconds:.0f} s, {result.bits_per_weight:.2f} bits a weight, peak {result.peak_memory / 1e9:.2f} GB (MLX)")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"resident at most {most * 1024 / 1e9:.2f} GB, before the conversion {resident * 1024 / 1e9:.2f} GB", flush=True
    )


def report_decoding(target: Path, drafter: Path) -> None:
    """Loads the pair, and decodes without and with drafts; the tokens have to be the same."""
    started = time.perf_counter()
    model, _ = load_model(target)
    pair = {"plain": None, f"{DRAFTS} drafts a round": load_drafter(drafter, model)}
    print(f"loaded in {time.perf_counter() - started:.0f} s, {mx.get_active_memory() / 1e9:.2f} GB")
    replies = {}
    for name, drafts_with in pair.items():
        started = time.perf_counter()
        steps = generate_step(PROMPT, model, draft_model=drafts_with, num_draft_tokens=DRAFTS, max_tokens=TOKENS)
        replies[name] = [token for token, _, _ in steps]
        print(f"{name}: {TOKENS} tokens in {time.perf_counter() - started:.1f} s: {replies[name]}", flush=True)
    print("the same" if len(set(map(tuple, replies.values()))) == 1 else "NOT the same")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folder", type=Path, required=True)
    options.add_argument("--size", default="e2b")
    options = options.parse_args()
    for part, name in {"target": f"gemma-4-{options.size}", "drafter": f"gemma-4-{options.size}-assistant"}.items():
        source, converted = options.folder / part, options.folder / f"{part}-4bit"
        raw = official_config(name)
        if not source.exists():
            write_checkpoint(source, random_tensors(parameter_shapes(raw)), raw)
        report_conversion(source, converted)
    report_decoding(options.folder / "target-4bit", options.folder / "drafter-4bit")


if __name__ == "__main__":
    main()
