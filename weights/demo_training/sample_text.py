"""Samples text from the demo target, for its drafter to learn from.

Prompts are beginnings of training documents. Each continuation alternates between stretches of greedy decoding, which
is what a drafter meets at temperature 0, and of sampling, which keep it out of loops.
"""

import argparse
import time
from pathlib import Path

import mtp_mlx  # loads OpenBLAS, before MLX is imported

# isort: split
import mlx.core as mx
import numpy as np
from packing import cached_documents
from prompts import PromptSource

from mtp_mlx.training import continue_prompts

PROMPT_LENGTHS = (8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128)
GREEDY_STRETCH, SAMPLED_STRETCH = 24, 12


def temperatures(rng: np.random.Generator, size: int, length: int, temperature: float) -> mx.array:
    """Of each token [size, length]: a quarter of the rows sampled throughout, the others in alternating stretches."""
    period = GREEDY_STRETCH + SAMPLED_STRETCH
    phase = (np.arange(length) + rng.integers(0, period, (size, 1))) % period
    sampled = (phase >= GREEDY_STRETCH) | (rng.random((size, 1)) < 0.25)
    return mx.array(np.where(sampled, temperature, 0.0).astype(np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True, help="exported target")
    parser.add_argument("--documents", type=Path, required=True, help="documents.jsonl from corpus.py")
    parser.add_argument("--tokens", type=Path, required=True, help="tokens.npz that train_target.py made of them")
    parser.add_argument("--output", type=Path, required=True, help="text to write (.npy, uint16 rows)")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--length", type=int, default=192, help="tokens a row, prompt included")
    parser.add_argument("--batch", type=int, default=64, help="rows sampled side by side")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    target, _ = mtp_mlx.load_model(args.target)
    documents = cached_documents(args.documents, Path(args.target), args.tokens)
    rng = np.random.default_rng(args.seed)
    mx.random.seed(args.seed)
    prompts, rows, started = PromptSource(documents, rng), [], time.time()
    while len(rows) * args.batch < args.rows:
        batch = mx.array(prompts.batch(args.batch, int(rng.choice(PROMPT_LENGTHS))))
        wanted = temperatures(rng, args.batch, args.length - batch.shape[1], args.temperature)
        rows.append(np.array(continue_prompts(target, batch, wanted)).astype(np.uint16))
        np.save(args.output, np.concatenate(rows))
        sampled = sum(r.size for r in rows) / (time.time() - started)
        print(f"{len(rows) * args.batch} rows, {sampled:.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
