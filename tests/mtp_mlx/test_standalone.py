"""A stand-alone drafter keeps step with the target: it drafts what it would say itself after the very same tokens."""

from functools import cache
from pathlib import Path

import mlx.core as mx
import mlx_lm
import pytest

from mtp_mlx import draft_tokens, generate_step, load_drafter
from mtp_mlx.batching import BatchGenerator
from mtp_mlx.decoding.compiled import CompiledRound
from mtp_mlx.decoding.depth import FixedDepth
from mtp_mlx.decoding.plain import plain_tokens
from mtp_mlx.decoding.round import Round
from mtp_mlx.decoding.stream import TokenStream
from mtp_mlx.errors import MisuseError, UserError
from mtp_mlx.models.standalone import StandaloneDrafter
from mtp_mlx.prompt_cache import PromptCache
from mtp_mlx.sampler import make_sampler
from tests import tiny

PROMPT = [5, 99, 17, 3, 64, 8, 120, 41, 77]


@cache
def target(architecture: str = "llama") -> tiny.Target:
    return tiny.build_target(tiny.target_config(architecture))


@cache
def small() -> StandaloneDrafter:
    """Another model than the target, so that some drafts are accepted at most."""
    config = tiny.target_config("llama", num_hidden_layers=1, hidden_size=32, intermediate_size=48)
    return StandaloneDrafter(tiny.build_target(config, seed=7))


@cache
def similar() -> tiny.Target:
    """The target with a noisy head: now and then it chooses otherwise."""
    model = tiny.build_target(tiny.target_config("llama"))
    weight = model.lm_head.weight
    model.lm_head.weight = weight + 0.3 * mx.std(weight) * mx.random.normal(weight.shape, key=mx.random.key(0))
    return model


@cache
def plain(architecture: str, count: int) -> list[tuple[int, mx.array]]:
    model = target(architecture)
    tokens = plain_tokens(model, PROMPT, model.make_cache())
    return [next(tokens) for _ in range(count)]


def stream_of(round: Round, num_draft_tokens: int, max_tokens: int) -> TokenStream:
    cache = round.model.make_cache()
    return TokenStream(round, cache, list(PROMPT), max_tokens=max_tokens, depth=FixedDepth(num_draft_tokens))


@pytest.mark.parametrize("kind", [Round, CompiledRound])
@pytest.mark.parametrize("architecture", ["llama", "e2b", "26b"])
def test_output_is_the_target_s_to_the_bit(architecture, kind):
    emitted = list(stream_of(kind(target(architecture), small()), 3, 40))
    for mine, (token, logits) in zip(emitted, plain(architecture, 40), strict=True):
        assert mine.token == token
        assert mx.array_equal(mine.logits, logits)


@pytest.mark.parametrize("kind", [Round, CompiledRound])
@pytest.mark.parametrize("num_draft_tokens", [1, 4])
def test_the_target_itself_drafts_what_it_will_say(kind, num_draft_tokens):
    """Every draft is accepted in every round, across the place where the stores grow, only if nothing is missing."""
    drafter = StandaloneDrafter(target())
    stream = stream_of(kind(target(), drafter), num_draft_tokens, 280)
    assert [emitted.token for emitted in stream] == [token for token, _ in plain("llama", 280)]
    assert stream.speculation.accepted == stream.speculation.drafted > 0
    assert stream.cache.beside.capacity > 256


class Spy(StandaloneDrafter):
    """Notes how many tokens the target held, the last token, and what was drafted after it."""

    def __init__(self, model: tiny.Target):
        super().__init__(model)
        self.seen = []

    def draft(self, target, cache, token, hidden, num_tokens, pick=None):
        drafts = super().draft(target, cache, token, hidden, num_tokens, pick)
        self.seen.append((cache.lengths.item(), drafts[0].tolist()))
        return drafts


def test_drafts_are_its_own_greedy_continuation_whatever_was_rejected():
    spy = Spy(similar())
    stream = stream_of(Round(target(), spy), 3, 40)
    text = PROMPT + [emitted.token for emitted in stream]
    assert 0 < stream.speculation.accepted < stream.speculation.drafted
    for length, drafts in spy.seen:
        assert drafts == greedy_continuation(similar(), text[: length + 1], len(drafts))


def greedy_continuation(model: tiny.Target, ids: list[int], count: int) -> list[int]:
    ids = list(ids)
    for _ in range(count):
        ids.append(mx.argmax(model(mx.array([ids]))[0, -1]).item())
    return ids[-count:]


def test_the_next_turn_reads_only_what_is_new():
    model, drafter = target(), StandaloneDrafter(target())
    cache = PromptCache(model, drafter)
    first = reply(cache, PROMPT, 12)
    prompt = PROMPT + first + [9, 33, 21]
    cold = PromptCache(model, drafter)
    speculations = [speculation_of(each, prompt) for each in (cache, cold)]
    assert speculations[0] == speculations[1]
    assert speculations[0].accepted == speculations[0].drafted > 0


def reply(cache: PromptCache, prompt: list[int], count: int) -> list[int]:
    rest = cache.begin(prompt)
    tokens = []
    options = {"draft_model": cache.drafter, "num_draft_tokens": 3, "prompt_cache": cache.cache, "max_tokens": count}
    for token, _, _ in generate_step(rest, cache.model, **options):
        cache.record(token)
        tokens.append(token)
    return tokens


def speculation_of(cache: PromptCache, prompt: list[int]):
    rest = cache.begin(prompt)
    round = Round(cache.model, cache.drafter)
    stream = TokenStream(round, cache.cache, rest, max_tokens=9, depth=FixedDepth(3))
    for emitted in stream:
        cache.record(emitted.token)
    return stream.speculation


def test_a_seed_gives_the_text_that_it_gives_without_a_drafter():
    def text(drafter):
        sampler = make_sampler(temp=1.0, seed=3)
        options = {"draft_model": drafter, "num_draft_tokens": 3, "sampler": sampler, "max_tokens": 24}
        return [token for token, _, _ in generate_step(PROMPT, target(), **options)]

    assert text(small()) == text(None)


def test_a_folder_with_a_small_model_is_a_drafter(tmp_path):
    folder = write_small(tmp_path / "small")
    drafter = load_drafter(folder, target())
    assert isinstance(drafter, StandaloneDrafter)
    first, drafts = draft_tokens(target(), drafter, PROMPT, 4)
    assert drafts == greedy_continuation(drafter.model, [*PROMPT, first], 4)


def test_a_model_of_mlx_lm_s_drafts_as_it_does_there(tmp_path):
    model, _ = mlx_lm.utils.load_model(write_small(tmp_path / "small"))
    ours = load_drafter(tmp_path / "small", target())
    assert draft_tokens(target(), model, PROMPT, 4) == draft_tokens(target(), ours, PROMPT, 4)


def write_small(folder: Path, **changes) -> Path:
    config = tiny.target_config("llama", num_hidden_layers=2, **changes)
    return tiny.write_target(folder, config)


def test_another_vocabulary_is_refused(tmp_path):
    with pytest.raises(UserError, match="vocabulary size 128, the drafter 96"):
        load_drafter(write_small(tmp_path / "small", vocab_size=96), target())


def test_one_that_is_not_smaller_is_refused(tmp_path):
    folder = tiny.write_target(tmp_path / "same", tiny.target_config("llama"))
    with pytest.raises(UserError, match="must be smaller than its target"):
        load_drafter(folder, target())


def test_a_batch_is_refused():
    with pytest.raises(MisuseError, match="a batch needs an MTP drafter"):
        BatchGenerator(target(), draft_model=small())
