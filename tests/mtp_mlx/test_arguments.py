"""Whatever is passed to a generation: it works, or it is refused in one line. Never other tokens, never a traceback."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtp_mlx import draft_tokens, generate_step, stream_generate
from mtp_mlx.errors import MisuseError
from mtp_mlx.load import load_tokenizer
from tests import tiny, tiny_tokenizer

SIZE = tiny_tokenizer.VOCAB_SIZE
CONFIG = tiny.target_config("e2b", vocab_size=SIZE, vocab_size_per_layer_input=SIZE)
PROMPT = [2, 30, 40, 50, 60]
TOKENS = 40


@pytest.fixture(scope="module")
def model():
    return tiny.build_target(CONFIG)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(tiny_tokenizer.write_tokenizer(tmp_path_factory.mktemp("tokenizer")), set())


@pytest.fixture(scope="module")
def truth(model) -> list[int]:
    return run(model)


def run(model, prompt: Any = PROMPT, **options) -> list[int]:
    return [token for token, _, _ in generate_step(prompt, model, **{"max_tokens": TOKENS, **options})]


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(MisuseError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "prompt",
    [
        tuple(PROMPT),
        [np.int64(token) for token in PROMPT],
        *(mx.array(PROMPT, dtype) for dtype in (mx.uint8, mx.int8, mx.uint32, mx.int64, mx.uint64)),
        mx.array([PROMPT]),
        *(np.array(PROMPT, dtype) for dtype in (np.uint8, np.int32, np.int64, np.uint64)),
        np.array([PROMPT]),
    ],
    ids=lambda prompt: f"{type(prompt).__name__} {getattr(prompt, 'dtype', '')}",
)
def test_one_sequence_of_integers_in_any_form(model, truth, prompt):
    assert run(model, prompt) == truth


@pytest.mark.parametrize(
    "prompt",
    [
        mx.array([PROMPT, PROMPT]),
        np.array([PROMPT, PROMPT]),
        [PROMPT, PROMPT],
        [PROMPT, PROMPT[1:]],
        mx.array(5),
        mx.array(PROMPT, mx.float32),
        mx.array(PROMPT, mx.bfloat16),
        [2.0, 3.0],
        [True, False],
        ["a", "b"],
        "text",
        b"text",
        None,
        iter(PROMPT),
        [10**30],
        [None],
    ],
    ids=str,
)
def test_other_prompts_are_refused(model, prompt):
    assert refused(lambda: run(model, prompt)).startswith("the prompt must be")


@pytest.mark.parametrize("step_size", [1, 3, 10**6, 2**31, 2**70, np.int64(4)])
def test_any_positive_prefill_step_size(model, truth, step_size):
    assert run(model, prefill_step_size=step_size) == truth


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"prefill_step_size": size}, "prefill_step_size must be") for size in (0, -1, 2.0, None, "3")),
        *(({"max_tokens": limit}, "max_tokens must be") for limit in (None, 2.5, 10.0, "5")),
    ],
    ids=str,
)
def test_numbers_that_are_none(model, options, message):
    assert refused(lambda: run(model, **options)).startswith(message)


@pytest.mark.parametrize("other", ["e4b", "12b", "window", "slots"])
@pytest.mark.parametrize("used", [False, True])
def test_a_cache_that_was_not_made_for_this_generation(model, other, used):
    configs = {"window": tiny.target_config("e2b", sliding_window=8), "slots": CONFIG}
    maker = tiny.build_target(configs.get(other) or tiny.target_config(other))
    cache = maker.make_cache(slots=2 if other == "slots" else 1)
    if used and other != "slots":
        run(maker, max_tokens=5, prompt_cache=cache)
    assert refused(lambda: run(model, prompt_cache=cache)).startswith("prompt_cache must")


@pytest.mark.parametrize("most", [0, 1, 2])
def test_rounds_are_never_longer_than_the_cache_has_room_for(model, truth, most):
    wrong = tiny.ScriptedDrafter([*PROMPT, *truth, *[0] * 16], True, SIZE)
    cache = model.make_cache(max_draft_tokens=most)
    message = refused(lambda: run(model, draft_model=wrong, num_draft_tokens=16, prompt_cache=cache))
    assert message.startswith(f"the prompt_cache was made for at most {most} drafts a round")
    assert run(model, draft_model=wrong, num_draft_tokens="auto", prompt_cache=cache) == truth


def test_what_would_be_drafted_at_the_automatic_depth(model):
    drafter = tiny.build_drafter(tiny.drafter_config(CONFIG, clustered=True))
    _, drafts = draft_tokens(model, drafter, PROMPT, "auto")
    assert drafts and drafts == draft_tokens(model, drafter, PROMPT, len(drafts))[1]


def test_a_stop_string_can_be_given_alone(model, tokenizer):
    def text(stop: Any) -> str:
        responses = stream_generate(model, tokenizer, PROMPT, max_tokens=TOKENS, stop=stop)
        return "".join(response.text for response in responses)

    whole = text(())
    stop = whole[5:8]
    assert text(stop) == text([stop]) == whole[: whole.index(stop)]
    assert text(None) == text("") == text([None, ""]) == whole
    assert refused(lambda: text([5])) == "stop must be strings (given: 5)"
