"""Speculation changes nothing: to the bit of the logits, whatever is drafted and however a generation ends.

`pytest tests/mtp_mlx/test_lossless.py --fuzz-cases 2000` runs the long version.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import mlx.core as mx
import pytest

from mtp_mlx.decoding.compiled import CompiledRound, round_for
from mtp_mlx.decoding.depth import FixedDepth
from mtp_mlx.decoding.plain import plain_tokens
from mtp_mlx.decoding.round import Round, State
from mtp_mlx.decoding.stream import TokenStream
from tests import tiny

WINDOWS = (4, 8, 12, 20)
MAX_DRAFTS = 6
REFERENCE_TOKENS = 36
ENDINGS = ("length", "stop id", "closed", "exception")
DRAFTERS = ("right", "wrong", "mixed", "clustered", "full")
Drafter = tiny.Gemma4Assistant | tiny.ScriptedDrafter


class ConsumerError(Exception):
    pass


@dataclass
class Reference:
    """A prompt and what plain decoding makes of it."""

    architecture: str
    window: int
    model: tiny.Target
    prompt: list[int]
    tokens: list[int]
    logits: list[mx.array]


@cache
def model_of(architecture: str, window: int) -> tiny.Target:
    return tiny.build_target(tiny.target_config(architecture, sliding_window=window))


@cache
def drafter_of(architecture: str, window: int, clustered: bool) -> tiny.Gemma4Assistant:
    target = tiny.target_config(architecture, sliding_window=window)
    return tiny.build_drafter(tiny.drafter_config(target, clustered=clustered))


@cache
def reference(architecture: str, window: int, prompt_length: int, step_size: int) -> Reference:
    model = model_of(architecture, window)
    rng = random.Random(f"{architecture}/{window}/{prompt_length}")
    prompt = [rng.randrange(model.config.vocab_size) for _ in range(prompt_length)]
    plain = plain_tokens(model, prompt, model.make_cache(max_draft_tokens=MAX_DRAFTS), step_size)
    pairs = [next(plain) for _ in range(REFERENCE_TOKENS)]
    return Reference(
        architecture, window, model, prompt, [token for token, _ in pairs], [logits for _, logits in pairs]
    )


def drafter_for(kind: str, architecture: str, window: int, truth: Reference, rng: random.Random) -> Drafter:
    if kind in ("clustered", "full"):
        return drafter_of(architecture, window, kind == "clustered")
    script = truth.prompt + truth.tokens + [0] * MAX_DRAFTS
    wrong = {"right": False, "wrong": True, "mixed": [rng.random() < 0.4 for _ in script]}[kind]
    return tiny.ScriptedDrafter(script, wrong, truth.model.config.vocab_size)


def run_to_its_end(stream: TokenStream, ending: str, length: int) -> list:
    """Consumes `stream` until `length` tokens, ending it in one of the ways generations end."""
    emitted = []
    tokens = iter(stream)
    try:
        for token in tokens:
            emitted.append(token)
            if ending == "closed" and len(emitted) == length:
                tokens.close()
            if ending == "exception" and len(emitted) == length:
                tokens.throw(ConsumerError())
    except ConsumerError:
        assert ending == "exception"
    return emitted


class ScriptedRound(CompiledRound):
    """Verifies compiled; the script changes from case to case, so it stays out of the trace."""

    def draft(self, *arguments) -> State:
        return Round.draft(self, *arguments)


def eager_round(truth: Reference, drafter: Drafter) -> Round:
    return Round(truth.model, drafter)


def kept_round(truth: Reference, drafter: Drafter) -> Round:
    """A compiled round as decoding keeps it: traced in one case, used again in others."""
    if isinstance(drafter, tiny.ScriptedDrafter):
        round = scripted_round_of(truth.architecture, truth.window)
        round.drafter = drafter
        return round
    return round_for(truth.model, drafter)


@cache
def scripted_round_of(architecture: str, window: int) -> ScriptedRound:
    return ScriptedRound(model_of(architecture, window), None)


def check_case(rng: random.Random, make_round: Callable[[Reference, Drafter], Round]) -> None:
    architecture, window = rng.choice(list(tiny.ARCHITECTURES)), rng.choice(WINDOWS)
    step_size = rng.choice((4, 7, 512))
    truth = reference(architecture, window, rng.randint(1, 3 * window), step_size)
    kind, ending, depth = rng.choice(DRAFTERS), rng.choice(ENDINGS), rng.randint(0, MAX_DRAFTS)
    length = rng.randint(1, REFERENCE_TOKENS - MAX_DRAFTS)
    stop_ids = {truth.tokens[length - 1]} if ending == "stop id" else set()
    if ending == "stop id":
        length = truth.tokens.index(truth.tokens[length - 1]) + 1
    case = f"{architecture} window {window} prompt {len(truth.prompt)} {kind} k={depth} {ending} at {length}"

    drafter = drafter_for(kind, architecture, window, truth, rng)
    store = truth.model.make_cache(max_draft_tokens=MAX_DRAFTS)
    round = make_round(truth, drafter)
    limit = length if ending == "length" else REFERENCE_TOKENS
    options = {"depth": FixedDepth(depth), "prefill_step_size": step_size}
    stream = TokenStream(round, store, truth.prompt, max_tokens=limit, stop_ids=stop_ids, **options)
    emitted = run_to_its_end(stream, ending, length)
    assert_equal(emitted, truth, 0, length, case)
    assert store.offset == len(truth.prompt) + length - 1, case
    assert store.lengths.tolist() == [store.offset], case

    # The cache holds everything but the last token: going on from there equals never having stopped.
    rest = TokenStream(
        round, store, [truth.tokens[length - 1]], max_tokens=REFERENCE_TOKENS - length, depth=FixedDepth(depth)
    )
    assert_equal(list(rest), truth, length, REFERENCE_TOKENS, case + ", continued")
    if kind == "wrong":
        assert stream.speculation.accepted == 0, case
    if kind == "right":
        assert rest.speculation.accepted == rest.speculation.drafted, case


def assert_equal(emitted: list, truth: Reference, start: int, end: int, case: str) -> None:
    assert [e.token for e in emitted] == truth.tokens[start:end], case
    for e, logits in zip(emitted, truth.logits[start:end], strict=True):
        assert mx.array_equal(e.logits, logits).item(), f"{case}: logits differ by {mx.abs(e.logits - logits).max()}"


@pytest.mark.parametrize("make_round", [eager_round, kept_round])
def test_output_and_cache_equal_plain_decoding_to_the_bit(fuzz_cases, fuzz_seed, make_round):
    rng = random.Random(fuzz_seed)
    for _ in range(fuzz_cases):
        check_case(rng, make_round)


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_compiled_rounds_equal_plain_decoding_to_the_bit(architecture):
    window = 12
    model, drafter = model_of(architecture, window), drafter_of(architecture, window, True)
    round = CompiledRound(model, drafter)
    for prompt_length, depth in ((1, 3), (9, 3), (30, 2), (30, 0)):
        truth = reference(architecture, window, prompt_length, 512)
        store = model.make_cache(max_draft_tokens=MAX_DRAFTS)
        stream = TokenStream(round, store, truth.prompt, max_tokens=REFERENCE_TOKENS, depth=FixedDepth(depth))
        assert_equal(list(stream), truth, 0, REFERENCE_TOKENS, f"{architecture} prompt {prompt_length} k={depth}")


@pytest.mark.parametrize("right", [True, False])
def test_compiled_rounds_with_scripted_drafts(right):
    truth = reference("e2b", 8, 20, 512)
    script = truth.prompt + truth.tokens + [0] * MAX_DRAFTS
    drafter = tiny.ScriptedDrafter(script, not right, truth.model.config.vocab_size)
    store = truth.model.make_cache(max_draft_tokens=MAX_DRAFTS)
    round = CompiledRound(truth.model, drafter)
    stream = TokenStream(round, store, truth.prompt, max_tokens=REFERENCE_TOKENS, depth=FixedDepth(4))
    assert_equal(list(stream), truth, 0, REFERENCE_TOKENS, "scripted")
    assert stream.speculation.acceptance_rate == (1.0 if right else 0.0)
