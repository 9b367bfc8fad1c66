"""What tests of batches share: tiny pairs, what plain decoding makes of random prompts, drafters that know it."""

import random
from dataclasses import dataclass
from functools import cache

import mlx.core as mx

from mtp_mlx import make_sampler
from mtp_mlx.decoding.acceptance import rule_for
from mtp_mlx.decoding.batch import Batch
from mtp_mlx.decoding.depth import FixedDepth
from mtp_mlx.decoding.plain import plain_tokens
from mtp_mlx.decoding.round import Round
from mtp_mlx.decoding.sampling import Sampler
from mtp_mlx.decoding.stream import TokenStream
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.drafter import Drafter
from tests import tiny

WINDOW, CONTINUATION = 12, 36
MOST_IDS = 300  # of a prompt and its continuation
# What a batch could confuse, in as few layers as have it: rings, linear buffers, layers that share both.
_SHARING = {"layer_types": [tiny.S, tiny.F, tiny.S, tiny.F], "num_kv_shared_layers": 2}
_OWNING = {"layer_types": [tiny.S, tiny.F]}
_FULL = {"num_hidden_layers": 2}
ARCHITECTURES = {
    **dict.fromkeys(("e2b", "e4b"), _SHARING),
    **dict.fromkeys(("12b", "26b", "llama-sliding"), _OWNING),
    "llama": _FULL,
}


@cache
def config_of(architecture: str) -> tiny.Config:
    """config.json of a target in this shape."""
    window = {} if architecture == "llama" else {"sliding_window": WINDOW}
    return tiny.target_config(architecture, **window, **ARCHITECTURES[architecture])


@cache
def target(architecture: str) -> tiny.Target:
    return tiny.build_target(config_of(architecture))


@cache
def drafter(architecture: str) -> tiny.Gemma4Assistant:
    kinds = [tiny.F] if architecture == "llama" else [tiny.S, tiny.F]
    layers = {"layer_types": kinds, "num_hidden_layers": len(kinds), "num_kv_shared_layers": len(kinds)}
    return tiny.build_drafter(tiny.drafter_config(config_of(architecture), clustered=True, **layers))


def second_best(logprobs: mx.array) -> mx.array:
    """A sampler of one's own: log-probabilities [N, V] -> the second likeliest ids [N]."""
    return mx.argsort(-logprobs, axis=-1)[:, 1]


GREEDY, OWN = None, second_best
WARM, COOL = make_sampler(1.0, seed=11), make_sampler(0.6, top_k=9, seed=12)


@dataclass(frozen=True)
class Truth:
    """A prompt and what decoding alone makes of it, plainly: tokens, and the logits [n, V] they were chosen from."""

    prompt: tuple[int, ...]
    tokens: list[int]
    logits: mx.array


@cache
def truth(architecture: str, length: int, sampler: Sampler | None = GREEDY, count: int = CONTINUATION) -> Truth:
    model, rng = target(architecture), random.Random(f"{architecture}/{length}")
    prompt = tuple(rng.randrange(model.config.vocab_size) for _ in range(length))
    pairs = alone(model, list(prompt), sampler, model.make_cache(), count)
    logits = mx.stack([logits for _, logits in pairs])
    mx.eval(logits)
    return Truth(prompt, [token for token, _ in pairs], logits)


def alone(
    model: tiny.Target, prompt: list[int], sampler: Sampler | None, store: KVCache, count: int
) -> list[tuple[int, mx.array]]:
    """`count` tokens after `store` and `prompt`, one a forward pass, and the logits [V] they were chosen from."""
    if sampler is GREEDY:
        plain = plain_tokens(model, prompt, store)
        return [next(plain) for _ in range(count)]
    rule, controls = rule_for([sampler])
    options = {"max_tokens": count, "depth": FixedDepth(0), "controls": controls}
    return [(each.token, each.logits) for each in TokenStream(Round(model, None, rule), store, prompt, **options)]


class RowScripts(Drafter):
    """Proposes to each slot from its own sequence's known continuation: right ones for some, wrong ones for others.

    It looks at the host's slots, so it works in eager rounds only.
    """

    def __init__(self, vocabulary: int):
        super().__init__()
        self.vocabulary, self.scripts, self.batch = vocabulary, {}, None

    def follow(self, batch: Batch) -> None:
        """Drafts for the slots of `batch`."""
        self.batch = batch

    def add(self, known: Truth, sampler: Sampler | None = GREEDY, *, wrong: bool) -> None:
        shift = 1 if wrong else 0
        ids = [(token + shift) % self.vocabulary for token in (*known.prompt, *known.tokens)]
        self.scripts[known.prompt, sampler] = ids[:MOST_IDS] + [0] * (MOST_IDS - len(ids))

    def draft(self, model, store, token, hidden, num_tokens, pick=None) -> mx.array:
        idle = [0] * MOST_IDS
        rows = [self._script(member) if member else idle for member in self.batch.slots]
        positions = store.lengths[:, None] + 1 + mx.arange(num_tokens)
        return mx.take_along_axis(mx.array(rows), mx.minimum(positions, MOST_IDS - 1), axis=1)

    def _script(self, member) -> list[int]:
        return next(
            ids
            for (prompt, sampler), ids in self.scripts.items()
            if sampler is member.sampler and tuple(member.history[: len(prompt)]) == prompt
        )


def untouched(tokens: mx.array, logits: mx.array) -> mx.array:
    """A processor that changes nothing: rounds with one are eager."""
    return logits
