"""Streams of MLX belong to threads; a model, a cache and compiled rounds serve any thread, in turn or at once."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from mtp_mlx import generate_step
from mtp_mlx.prompt_cache import PromptCache
from tests import tiny

CONFIG = tiny.target_config("e2b")
PROMPTS = [[2, *(random.Random(n).randrange(128) for _ in range(n))] for n in (1, 5, 17, 40)]
TOKENS = 30


def new_pair():
    return tiny.build_target(CONFIG), tiny.build_drafter(tiny.drafter_config(CONFIG, clustered=True))


def run(pair, prompt: list[int], cache=None, tokens: int = TOKENS) -> list[int]:
    model, drafter = pair
    options = {"draft_model": drafter, "num_draft_tokens": 3, "max_tokens": tokens, "prompt_cache": cache}
    return [token for token, _, _ in generate_step(prompt, model, **options)]


def in_a_thread(function, *arguments):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


@pytest.fixture(scope="module")
def pair():
    return new_pair()


@pytest.fixture(scope="module")
def truth(pair):
    return [run(pair, prompt) for prompt in PROMPTS]


def test_a_model_made_here_first_decodes_elsewhere(truth):
    pair = new_pair()
    assert in_a_thread(run, pair, PROMPTS[1]) == truth[1]
    assert run(pair, PROMPTS[1]) == truth[1]


def test_compiled_rounds_are_for_every_thread(pair, truth):
    assert [in_a_thread(run, pair, prompt) for prompt in PROMPTS] == truth


def test_several_threads_at_once(pair, truth):
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        assert list(pool.map(lambda prompt: run(pair, prompt), PROMPTS)) == truth


def test_a_conversation_goes_on_in_another_thread(pair, truth):
    cache = PromptCache(pair[0])  # made in this one
    first = in_a_thread(run, pair, cache.begin(PROMPTS[2]), cache.cache, 10)
    for token in first:
        cache.record(token)
    rest = in_a_thread(run, pair, cache.begin(PROMPTS[2] + first), cache.cache, TOKENS - 10)
    assert first + rest == truth[2]


def test_a_generation_goes_on_in_another_thread(pair, truth):
    model, drafter = pair
    steps = generate_step(PROMPTS[1], model, draft_model=drafter, num_draft_tokens=3, max_tokens=TOKENS)
    begun = [next(steps)[0] for _ in range(10)]
    assert begun + in_a_thread(lambda: [token for token, _, _ in steps]) == truth[1]


@pytest.mark.parametrize("depth", [0, 3, "auto"])
def test_generations_in_turn_do_not_disturb_each_other(pair, truth, depth):
    model, drafter = pair
    options = {"draft_model": drafter, "num_draft_tokens": depth, "max_tokens": TOKENS}
    steps = [generate_step(prompt, model, **options) for prompt in PROMPTS]
    emitted, rng = [[] for _ in PROMPTS], random.Random(0)
    while waiting := [n for n, tokens in enumerate(emitted) if len(tokens) < TOKENS]:
        n = rng.choice(waiting)
        emitted[n].append(next(steps[n])[0])
    assert emitted == truth
