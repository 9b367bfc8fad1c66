"""Samplers: every value of an option samples soundly, or is refused; seeds."""

import mlx.core as mx
import pytest
from mlx_lm.sample_utils import make_sampler as mlx_lm_sampler

import mtp_mlx
from mtp_mlx.decoding.sampling import COLDEST, log_softmax
from mtp_mlx.errors import MisuseError
from mtp_mlx.sampler import make_sampler
from tests import tiny

LOGPROBS = log_softmax(mx.array([[-20.0, 3.0, 2.9, -80.0, 0.0]]))
PROMPT = [5, 6, 7, 8]


@pytest.mark.parametrize("temp", [0.0, 1e-320, 1e-40, 1e-30])
def test_as_good_as_greedy_is_greedy(temp):
    assert make_sampler(temp).temp == 0


@pytest.mark.parametrize("temp", [0.0, COLDEST, 1e-4])
def test_near_zero_the_likeliest_is_drawn(temp):
    assert make_sampler(temp)(mx.repeat(LOGPROBS, 50, axis=0)).tolist() == [1] * 50


@pytest.mark.parametrize("top_k", [5, 6, 10**9])
def test_the_whole_vocabulary_can_be_kept(top_k):
    rows = mx.repeat(LOGPROBS, 4000, axis=0)
    assert set(make_sampler(30.0, top_k=top_k)(rows).tolist()) == {0, 1, 2, 3, 4}


def test_top_k_keeps_the_likeliest():
    assert set(make_sampler(5.0, top_k=2)(mx.repeat(LOGPROBS, 200, axis=0)).tolist()) == {1, 2}


def test_xtc_leaves_out_the_top_choices():
    rows = mx.repeat(LOGPROBS, 400, axis=0)
    always = make_sampler(1.0, xtc_probability=1.0, xtc_threshold=0.1)(rows).tolist()
    assert 1 not in always and 2 in always
    assert set(make_sampler(1.0, xtc_probability=1.0, xtc_special_tokens=[1])(rows).tolist()) >= {1, 2}
    half = make_sampler(1.0, xtc_probability=0.5, xtc_threshold=0.1)(rows).tolist()
    assert 0.15 < half.count(1) / 400 < 0.35  # of its 0.51


@pytest.mark.parametrize(
    "options",
    [
        {"temp": float("inf")},
        {"temp": -1.0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"min_p": 2.0},
        {"min_tokens_to_keep": 0},
        {"xtc_probability": 1.5},
        {"xtc_threshold": 0.6},
        {"draft_temp": 0.0},
        {"seed": 2**64},
        {"seed": 10**40},
        {"seed": -1},
    ],
)
def test_values_that_cannot_be_computed_with(options):
    with pytest.raises(MisuseError, match="must be|must not be"):
        make_sampler(**options)


@pytest.fixture(scope="module")
def pair():
    config = tiny.target_config("e2b")
    return tiny.build_target(config), tiny.build_drafter(tiny.drafter_config(config, clustered=True))


def text_of(pair, sampler, depth, drafter=True, tokens=30) -> list[int]:
    model, draft_model = pair
    options = {"draft_model": draft_model if drafter else None, "num_draft_tokens": depth, "max_tokens": tokens}
    return [token for token, *_ in mtp_mlx.generate_step(PROMPT, model, sampler=sampler, **options)]


@pytest.mark.parametrize("options", [{"temp": 1.0}, {"temp": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01}])
def test_a_seed_gives_the_same_text_at_any_depth_and_without_a_drafter(pair, options):
    sampler = make_sampler(**options, seed=2**64 - 3)
    plain = text_of(pair, sampler, 0, drafter=False)
    for depth in (0, 1, 2, 3, 5, "auto"):
        assert text_of(pair, sampler, depth) == plain
    assert text_of(pair, make_sampler(**options, seed=4), 3) != plain


def test_a_seed_is_independent_of_other_requests(pair):
    model, drafter = pair
    sampler = make_sampler(1.0, seed=3)
    expected = text_of(pair, sampler, 2)
    options = {"draft_model": drafter, "num_draft_tokens": 2, "max_tokens": 30}
    steps = zip(
        mtp_mlx.generate_step(PROMPT, model, sampler=sampler, **options),
        mtp_mlx.generate_step(PROMPT[::-1], model, sampler=make_sampler(1.0), **options),
        strict=True,
    )
    assert [mine[0] for mine, _ in steps] == expected


@pytest.mark.parametrize("depth", [0, 3])
def test_without_a_seed_texts_differ(pair, depth):
    assert text_of(pair, make_sampler(1.0), depth) != text_of(pair, make_sampler(1.0), depth)


def test_mlx_random_state_makes_an_unseeded_sampler_reproducible(pair):
    texts = []
    for _ in range(2):
        mx.random.seed(9)
        texts.append(text_of(pair, make_sampler(1.0), 3))
    assert texts[0] == texts[1]


def test_mlx_lms_greedy_sampler_is_greedy(pair):
    assert text_of(pair, mlx_lm_sampler(0.0), 3) == text_of(pair, None, 3)


def test_any_sampler_works_by_matching(pair):
    calls = []

    def second_best(logprobs: mx.array) -> mx.array:
        calls.append(logprobs.shape)
        return mx.argsort(-logprobs, axis=-1)[:, 1]

    assert text_of(pair, second_best, 3) == text_of(pair, second_best, 0, drafter=False)
    assert (4, 128) in calls


@pytest.mark.parametrize("options", [{"temp": 1.0}, {"temp": 1.0, "seed": 1}])
def test_log_probabilities_are_those_of_plain_decoding(pair, options):
    model, drafter = pair
    steps = list(
        mtp_mlx.generate_step(
            PROMPT, model, draft_model=drafter, num_draft_tokens=3, max_tokens=20, sampler=make_sampler(**options)
        )
    )
    ids = PROMPT + [token for token, *_ in steps]
    plain = log_softmax(model(mx.array([ids[:-1]])))[0, len(PROMPT) - 1 :]
    for (_, logprobs, _), expected in zip(steps, plain, strict=True):
        assert mx.allclose(logprobs, expected, atol=1e-4).item()


def test_the_lenient_rule_accepts_more(pair):
    model, drafter = pair
    strict, lenient = (
        list(
            mtp_mlx.generate_step(
                PROMPT,
                model,
                draft_model=drafter,
                num_draft_tokens=3,
                max_tokens=60,
                sampler=make_sampler(0, lenient=x),
            )
        )
        for x in (False, True)
    )
    assert sum(step[2] for step in lenient) > sum(step[2] for step in strict)
