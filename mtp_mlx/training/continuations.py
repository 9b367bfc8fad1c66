"""Text of the target's own: it goes on with the prompts of the training data, many at a time."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from mtp_mlx.batching import BatchGenerator
from mtp_mlx.models.target import Target
from mtp_mlx.training.documents import Document
from mtp_mlx.training.fingerprint import of_arrays
from mtp_mlx.training.rows import prompt_ids
from mtp_mlx.training.settings import Settings
from mtp_weights.atomic_file import write_atomically

GREEDY_STRETCH, SAMPLED_STRETCH = 24, 12  # tokens; greedy is what a drafter meets, sampling keeps it out of loops
PROMPTS_A_FILE = 256  # so much is written again after an interruption
TEXT_PROMPT = 4  # a text's prompt is one so-manyth of a row


class Stretches:
    """A sampler of one sequence that takes the likeliest token for a stretch, then draws for a stretch, in turn."""

    def __init__(self, temperature: float, seed: int):
        self.temperature, self.key, self.count = temperature, mx.random.key(seed), 0

    def __call__(self, logprobs: mx.array) -> mx.array:
        """Log-probabilities [1, V] -> id [1]."""
        place = self.count % (GREEDY_STRETCH + SAMPLED_STRETCH)
        self.count += 1
        if place < GREEDY_STRETCH:
            return mx.argmax(logprobs, axis=-1)
        self.key, key = mx.random.split(self.key)
        return mx.random.categorical(logprobs / self.temperature, key=key)


def continue_documents(
    documents: Sequence[Document],
    target: Target,
    tokenizer: TokenizerWrapper,
    settings: Settings,
    folder: Path,
    progress: Callable[[int, int], None],
) -> list[list[int]]:
    """Prompts with what the target writes after them, up to `max_seq_length` tokens together or its stop id.

    A conversation is a prompt up to its last reply, a text its beginning.

    Args:
        folder: keeps what was written, for a run that goes on; it must be this target's and these settings'.
        progress: called with (prompts done, prompts in all).
    """
    length = settings.max_seq_length
    prompts = [prompt_ids(document, tokenizer, max(2, length // TEXT_PROMPT)) for document in documents]
    prompts = [ids for ids in prompts if len(ids) < length]
    stops = [[token] for token in sorted(tokenizer.eos_token_ids)]
    written: list[list[int]] = []
    for start in range(0, len(prompts), PROMPTS_A_FILE):
        part = prompts[start : start + PROMPTS_A_FILE]
        file = folder / f"written-{of_arrays(*map(np.array, part))}-{start}.json"
        if not file.exists():
            samplers = [Stretches(settings.temperature, settings.seed + start + n) for n in range(len(part))]
            done = partial(_advance, progress, start, len(prompts))
            texts = _continue(BatchGenerator(target, stop_tokens=stops), part, length, samplers, done)
            write_atomically(file, lambda opened, texts=texts: opened.write(json.dumps(texts).encode()))
        written += json.loads(file.read_bytes())
    return written


def _advance(progress: Callable[[int, int], None], before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _continue(
    generator: BatchGenerator,
    prompts: list[list[int]],
    length: int,
    samplers: list[Stretches],
    done: Callable[[int], None],
) -> list[list[int]]:
    generator.insert(prompts, [length - len(ids) for ids in prompts], samplers=samplers)
    written: dict[int, list[int]] = {}
    while tokens := generator.next_generated():
        for token in tokens:
            if token.finish_reason is not None:
                written[token.uid] = token.all_tokens
                done(len(written))
    return [written[uid] for uid in sorted(written)]
