"""Has SmolLM2 write conversations, and keeps what a head learns from: states, keys and values, likeliest next tokens.

The target writes both sides: user turns are sampled, after an opening from `openings.py`, replies are greedy in most
rows. So every row lasts as long as wanted, and nothing is computed that is not kept. Files `s<seed>_<n>.npz` of
`--rows` rows are added to `--output` until the process is stopped; a row of 288 tokens takes 0.6 MB.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from llama import Target
from openings import OPENINGS, SHARES
from tokenizers import Tokenizer

KEPT_CHOICES = 8
GREEDY_SHARE, REPLY_TEMPERATURE, USER_TEMPERATURE = 0.7, 0.7, 0.8
SAMPLED_FROM = 40  # top-k where tokens are sampled
LONGEST_USER_TURN = 110
UNWANTED = (0, 1)  # <|endoftext|>, <|im_start|>: the turn ends instead
END = 2  # <|im_end|>
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
USER, ASSISTANT = 0, 1
BEGINNINGS = {USER: "\n<|im_start|>user\n", ASSISTANT: "\n<|im_start|>assistant\n"}


class Row:
    """Whose turn it is, and what has to come next whatever the target thinks."""

    def __init__(self, tokenizer: Tokenizer, opening: str):
        self.encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        self.queue = self.encode(SYSTEM + BEGINNINGS[USER][1:] + opening)
        self.role, self.written = USER, 0

    def next(self, read: int, proposed: int) -> int:
        """The token after `read`, where the target proposes one."""
        if self.queue:
            return self.queue.pop(0)
        if read == END:
            self.role, self.written = 1 - self.role, 0
            self.queue = self.encode(BEGINNINGS[self.role])
            return self.queue.pop(0)
        self.written += 1
        too_long = self.role == USER and self.written > LONGEST_USER_TURN
        return END if too_long or proposed in UNWANTED else proposed


def propose(best: torch.Tensor, ids: torch.Tensor, temperature: torch.Tensor, generator: torch.Generator) -> np.ndarray:
    """The highest logits and their ids, both [B, k], temperatures [B], 0 for the likeliest -> ids [B]."""
    noise = -torch.log(-torch.log(torch.rand(best.shape, generator=generator).clamp_(1e-9, 1 - 1e-7)))
    scaled = best / temperature.clamp(min=1e-3)[:, None] + noise * (temperature > 0)[:, None]
    return ids.gather(1, scaled.argmax(-1, keepdim=True))[:, 0].numpy()


def write_rows(target: Target, tokenizer: Tokenizer, shape: tuple[int, int], seed: list[int]) -> dict[str, np.ndarray]:
    """`shape` is rows and tokens a row."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed[0] * 1000 + seed[1])
    kinds = rng.choice(list(SHARES), shape[0], p=list(SHARES.values()))
    rows = [Row(tokenizer, OPENINGS[kind][rng.integers(len(OPENINGS[kind]))]) for kind in kinds]
    reply_temperature = np.where(rng.random(shape[0]) < GREEDY_SHARE, 0, REPLY_TEMPERATURE).astype(np.float32)
    tokens, role = np.zeros(shape, np.int32), np.zeros(shape, np.int8)
    top_ids, top_lp = np.zeros((*shape, KEPT_CHOICES), np.uint16), np.zeros((*shape, KEPT_CHOICES), np.float16)
    hidden = np.zeros((*shape, target.dims), np.float16)
    now = np.array([row.queue.pop(0) for row in rows])
    for t in range(shape[1]):
        tokens[:, t], role[:, t] = now, [row.role for row in rows]
        states, logits = target.step(torch.from_numpy(now), t)
        best, ids = logits.topk(SAMPLED_FROM)
        hidden[:, t], top_ids[:, t] = states.numpy(), ids[:, :KEPT_CHOICES].numpy()
        top_lp[:, t] = (best[:, :KEPT_CHOICES] - logits.logsumexp(-1, keepdim=True)).numpy()
        temperature = np.where(role[:, t] == USER, np.float32(USER_TEMPERATURE), reply_temperature)
        proposed = propose(best, ids, torch.from_numpy(temperature), generator)
        now = np.array([row.next(*pair) for row, *pair in zip(rows, now, proposed, strict=True)])
    kv = {
        name: cache[-1].numpy().astype(np.float16) for name, cache in (("keys", target.keys), ("values", target.values))
    }
    kept = {"tokens": tokens, "role": role, "top_ids": top_ids, "top_lp": top_lp, "hidden": hidden}
    return {**kept, **kv, "temp": reply_temperature, "kinds": kinds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=224, help="rows written side by side")
    parser.add_argument("--length", type=int, default=288, help="tokens a row")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.output.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
    target = Target(args.target, args.rows, args.length)
    number = 0
    while True:
        began = time.time()
        rows = write_rows(target, tokenizer, (args.rows, args.length), [args.seed, number])
        path = args.output / f"s{args.seed}_{number:03d}.npz"
        np.savez(args.output / f"new{args.seed}.npz", **rows)
        os.replace(args.output / f"new{args.seed}.npz", path)
        print(json.dumps({"file": path.name, "seconds": round(time.time() - began, 1)}), flush=True)
        number += 1


if __name__ == "__main__":
    main()
