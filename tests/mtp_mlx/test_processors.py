"""Penalties, logit bias and processors of one's own see what plain decoding would have shown them, also under MTP.

`pytest tests/mtp_mlx/test_processors.py --fuzz-cases 200` runs the long version.
"""

import random
from functools import cache

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors

import mtp_mlx
from tests import tiny

TOKENS = 24
DRAFTERS = ("right", "wrong", "clustered")


@cache
def target(architecture: str) -> tiny.Target:
    return tiny.build_target(tiny.target_config(architecture))


@cache
def neural_drafter(architecture: str) -> tiny.Gemma4Assistant:
    return tiny.build_drafter(tiny.drafter_config(tiny.target_config(architecture), clustered=True))


class Reverser:
    """A processor in Python that depends on everything there is: every token so far, in its order."""

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        weights = mx.arange(1, tokens.size + 1) * tokens
        return mx.roll(logits, weights.sum().item() % 7, axis=-1)


def processors_of(rng: random.Random, vocabulary: int) -> list:
    """Some of mlx-lm's, with random values, and now and then one of our own."""
    bias = {rng.randrange(vocabulary): rng.uniform(-9, 9) for _ in range(rng.randint(0, 5))}
    options = {
        "logit_bias": bias or None,
        "repetition_penalty": rng.choice((None, 0.6, 1.3, 2.0)),
        "repetition_context_size": rng.choice((1, 5, 20, 100)),
        "presence_penalty": rng.choice((None, 0.7, -2.0)),
        "presence_context_size": rng.choice((3, 20)),
        "frequency_penalty": rng.choice((None, 0.4, 1.5)),
        "frequency_context_size": rng.choice((3, 40)),
    }
    return make_logits_processors(**options) + [Reverser()] * (rng.random() < 0.3)


def plain(model: tiny.Target, prompt: list[int], processors: list) -> list[int]:
    """The slow reference: one token a forward pass, the processors called with all that came before."""
    cache, ids, step = model.make_cache(), list(prompt), list(prompt)
    while len(ids) < len(prompt) + TOKENS:
        logits = model(mx.array([step]), cache)[:, -1]
        for processor in processors:
            logits = processor(mx.array(ids), logits)
        step = [mx.argmax(logits).item()]
        ids += step
    return ids[len(prompt) :]


def drafter_for(kind: str, architecture: str, script: list[int]):
    if kind == "clustered":
        return neural_drafter(architecture)
    return tiny.ScriptedDrafter(script + [0] * 8, kind == "wrong", target(architecture).config.vocab_size)


def test_processors_see_what_plain_decoding_shows_them(fuzz_cases, fuzz_seed):
    rng = random.Random(fuzz_seed)
    for _ in range(fuzz_cases):
        architecture, kind, depth = rng.choice(list(tiny.ARCHITECTURES)), rng.choice(DRAFTERS), rng.randint(0, 6)
        model = target(architecture)
        vocabulary = model.config.vocab_size
        prompt = [rng.randrange(vocabulary) for _ in range(rng.randint(1, 40))]
        processors = processors_of(rng, vocabulary)
        expected = plain(model, prompt, processors)
        drafter = drafter_for(kind, architecture, prompt + expected)
        options = {"draft_model": drafter, "num_draft_tokens": depth, "logits_processors": processors}
        steps = list(mtp_mlx.generate_step(prompt, model, max_tokens=TOKENS, **options))
        case = f"{architecture} {kind} k={depth} prompt {len(prompt)}"
        assert [token for token, *_ in steps] == expected, case
        if kind == "right" and depth:
            assert sum(from_draft for *_, from_draft in steps) >= TOKENS // 2 - 1, case
