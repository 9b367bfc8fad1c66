"""What `stream_generate` and `generate_step` promise: limits, stops, text, statistics, errors."""

import mlx.core as mx
import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from mtp_mlx import draft_tokens, generate, generate_step, load, stream_generate
from mtp_mlx.decoding.plain import plain_tokens
from mtp_mlx.errors import MisuseError
from mtp_mlx.generate import tokenize
from mtp_mlx.load import load_tokenizer
from mtp_weights.locate import resolve
from tests import tiny

VOCAB = 4096  # the demo tokenizer's
TEXT = "Dear 世界: naïve façade, e\u0301 — 🙂👩‍👩‍👧 ok.\n\n    def f(x):\n\treturn  x  # ½ \u2028 end"


@pytest.fixture(scope="module")
def tokenizer() -> TokenizerWrapper:
    return load_tokenizer(resolve("demo"), {1, 106})


@pytest.fixture(scope="module")
def model():
    sizes = {"vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB, "max_position_embeddings": 300}
    return tiny.build_target(tiny.target_config("e2b", **sizes))


PROMPT = [2, 300, 400, 500]


@pytest.fixture(scope="module")
def truth(model) -> list[int]:
    plain = plain_tokens(model, PROMPT)
    return [next(plain)[0] for _ in range(60)]


def scripted(tokens: list[int], wrong: bool, prompt: list[int] = PROMPT) -> tiny.ScriptedDrafter:
    return tiny.ScriptedDrafter([*prompt, *tokens, *[0] * 16], wrong, VOCAB)


def forcing(tokens: list[int], prompt_length: int):
    """A logits processor that makes the target emit `tokens`; it only looks at how long the context is."""

    def processor(context: mx.array, logits: mx.array) -> mx.array:
        forced = tokens[min(context.size - prompt_length, len(tokens) - 1)]
        return mx.where(mx.arange(VOCAB) == forced, 0.0, -mx.inf)[None]

    return processor


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 17])
def test_max_tokens_is_exact(model, tokenizer, truth, limit, wrong):
    drafter = scripted(truth, wrong)
    cache = model.make_cache()
    options = {"num_draft_tokens": 3, "max_tokens": limit, "prompt_cache": cache}
    responses = list(stream_generate(model, tokenizer, PROMPT, draft_model=drafter, **options))
    assert [r.token for r in responses] == truth[:limit]
    assert [r.generation_tokens for r in responses] == list(range(1, limit + 1))
    assert [r.finish_reason for r in responses] == [None] * (limit - 1) + ["length"]
    assert responses[-1].speculation.drafted <= 3 * max(0, limit - 2)
    assert cache.offset == len(PROMPT) + limit - 1


def test_a_right_drafter_saves_rounds_and_its_tokens_say_so(model, tokenizer, truth):
    responses = list(stream_generate(model, tokenizer, PROMPT, 13, scripted(truth, False), num_draft_tokens=3))
    speculation = responses[-1].speculation
    assert (speculation.rounds, speculation.drafted, speculation.accepted) == (3, 9, 9)
    assert speculation.mean_acceptance_length == 4.0
    assert [r.from_draft for r in responses] == [False] + [True, True, True, False] * 3
    assert [r.draft_position for r in responses] == [None] + [0, 1, 2, None] * 3
    assert not any(r.corrects_draft for r in responses)  # the last of each round is the bonus token


def test_tokens_say_where_they_come_from(model, tokenizer, truth):
    wrong = [False] * len(PROMPT) + [n in (2, 7) for n in range(len(truth))] + [False] * 16
    drafter = tiny.ScriptedDrafter([*PROMPT, *truth, *[0] * 16], wrong, VOCAB)
    responses = list(stream_generate(model, tokenizer, PROMPT, 8, drafter, num_draft_tokens=3))
    # The first token; drafts of 1, 2, 3 and of 3, 4, 5, of which 2 is wrong; drafts of 7 alone, which is wrong.
    assert [r.draft_position for r in responses] == [None, 0, None, 0, 1, 2, None, None]
    assert [n for n, r in enumerate(responses) if r.corrects_draft] == [2]


def test_fields_match_plain_decoding(model, tokenizer, truth):
    plain = plain_tokens(model, PROMPT)
    for response in stream_generate(model, tokenizer, PROMPT, 9, scripted(truth, True), num_draft_tokens=2):
        token, logits = next(plain)
        assert response.token == token
        assert mx.allclose(response.logprobs, logits - mx.logsumexp(logits), atol=1e-5).item()
        assert response.prompt_tokens == len(PROMPT)
    assert response.generation_tps > 0 and response.prompt_tps > 0 and response.peak_memory > 0


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("place", range(8))
def test_a_stop_id_ends_the_output_anywhere_in_a_block(model, tokenizer, wrong, place):
    tokens = [600 + i for i in range(place)] + [106] + [700] * 12
    cache = model.make_cache()
    responses = list(
        stream_generate(
            model,
            tokenizer,
            PROMPT,
            draft_model=scripted(tokens, wrong),
            num_draft_tokens=3,
            max_tokens=20,
            logits_processors=[forcing(tokens, len(PROMPT))],
            prompt_cache=cache,
        )
    )
    assert [r.token for r in responses] == tokens[: place + 1]
    assert responses[-1].finish_reason == "stop"
    assert "".join(r.text for r in responses) == tokenizer.decode(tokens[:place])
    assert responses[-1].speculation.accepted <= place + 1
    assert cache.offset == len(PROMPT) + place


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_streamed_pieces_are_the_full_text(model, tokenizer, depth):
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    drafter = scripted(ids, [i % 3 == 0 for i in range(len(PROMPT) + len(ids) + 16)])
    responses = list(
        stream_generate(
            model,
            tokenizer,
            PROMPT,
            draft_model=drafter,
            num_draft_tokens=depth,
            max_tokens=len(ids),
            logits_processors=[forcing(ids, len(PROMPT))],
        )
    )
    assert "".join(r.text for r in responses) == tokenizer.decode(ids) == TEXT


@pytest.mark.parametrize("stop", ["naïve", "🙂", "façade, e", "\n\n"])
def test_a_stop_string_cuts_the_text_and_is_never_shown(model, tokenizer, stop):
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    cache = model.make_cache()
    shown, tokens = "", []
    for response in stream_generate(
        model,
        tokenizer,
        PROMPT,
        draft_model=scripted(ids, False),
        num_draft_tokens=5,
        max_tokens=len(ids),
        stop=["never there", stop],
        logits_processors=[forcing(ids, len(PROMPT))],
        prompt_cache=cache,
    ):
        shown += response.text
        tokens.append(response.token)
        assert TEXT.startswith(shown)
    assert shown == TEXT[: TEXT.index(stop)]
    assert response.finish_reason == "stop"
    assert stop in tokenizer.decode(tokens) and stop not in tokenizer.decode(tokens[:-1])
    assert cache.offset == len(PROMPT) + len(tokens) - 1


def test_the_beginning_of_a_stop_string_is_shown_when_the_text_ends_there(model, tokenizer):
    ids = tokenizer.encode("one two", add_special_tokens=False)
    options = {"logits_processors": [forcing(ids, len(PROMPT))], "max_tokens": len(ids)}
    assert generate(model, tokenizer, PROMPT, stop=["two three"], **options) == tokenizer.decode(ids)


def test_processors_see_the_context_of_plain_decoding(model, tokenizer, truth):
    def context_penalty(context: mx.array, logits: mx.array) -> mx.array:
        counts = mx.zeros((VOCAB,)).at[context].add(2.0)
        return logits - counts

    def run(drafter, depth):
        steps = generate_step(
            PROMPT,
            model,
            draft_model=drafter,
            num_draft_tokens=depth,
            max_tokens=24,
            logits_processors=[context_penalty],
        )
        return [token for token, _, _ in steps]

    plain = run(None, 0)
    assert run(scripted(plain, False), 4) == plain
    assert run(scripted(plain, True), 3) == plain
    assert run(scripted(plain, [i % 2 == 0 for i in range(4 + 24 + 16)]), 5) == plain


def test_generation_ends_with_the_context(model, tokenizer, truth):
    cache = model.make_cache()
    drafter = scripted(truth, False)
    steps = list(generate_step(PROMPT, model, draft_model=drafter, max_tokens=-1, prompt_cache=cache))
    assert len(steps) == 300 - len(PROMPT)
    assert [token for token, _, _ in steps][:60] == truth


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": []}, "at least one token"),
        ({"prompt": [1] * 300}, "context of 300 tokens"),
        ({"max_tokens": 0}, "max_tokens must be positive"),
        ({"max_tokens": -2}, "max_tokens must be positive"),
        ({"prompt": [5, VOCAB]}, "token ids must be between"),
        ({"prompt": [-1]}, "token ids must be between"),
        ({"num_draft_tokens": 17}, "between 0 and 16"),
        ({"num_draft_tokens": -1}, "between 0 and 16"),
        ({"num_draft_tokens": "many"}, "between 0 and 16"),
        ({"prompt_cache": []}, "make_cache"),
    ],
)
def test_misuse_is_one_clear_line(model, tokenizer, truth, arguments, message):
    arguments = {"prompt": PROMPT, "draft_model": scripted(truth, False), **arguments}
    with pytest.raises(MisuseError, match=message) as error:
        next(stream_generate(model, tokenizer, **arguments))
    assert "\n" not in str(error.value)


def test_drafts_after_a_prompt(model, truth):
    assert draft_tokens(model, scripted(truth, False), PROMPT, 5) == (truth[0], truth[1:6])
    assert draft_tokens(model, scripted(truth, False), PROMPT, 0) == (truth[0], [])


def test_exactly_one_bos(tokenizer):
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    for text in ("Hello", "<bos>Hello", rendered):
        ids = tokenize(tokenizer, text)
        assert ids[0] == 2 and ids.count(2) == 1


def test_stop_ids_are_the_union_of_all_sources():
    _, tokenizer = load("demo")
    assert {1, 106} <= tokenizer.eos_token_ids
