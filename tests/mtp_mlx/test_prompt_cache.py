"""A turn on a kept cache equals the same turn on an empty one, to the bit."""

import random

import mlx.core as mx
import pytest

from mtp_mlx import generate_step, stream_generate
from mtp_mlx.load import load_tokenizer
from mtp_mlx.prompt_cache import PromptCache
from tests import tiny, tiny_tokenizer

WINDOW = 12
CONFIG = tiny.target_config("e2b", sliding_window=WINDOW)
VOCABULARY = CONFIG["vocab_size"]


@pytest.fixture(scope="module", params=["e2b", "llama"])
def config(request):
    return tiny.target_config(request.param, sliding_window=WINDOW)


@pytest.fixture(scope="module")
def model(config):
    return tiny.build_target(config)


@pytest.fixture(scope="module")
def drafter(config):
    return tiny.build_drafter(tiny.drafter_config(config, clustered=True))


with_rings = pytest.mark.parametrize("config", ["e2b"], indirect=True)


class Conversation:
    """Drives a `PromptCache`, comparing every turn with a cold run."""

    def __init__(self, model, drafter=None, num_draft_tokens=3):
        self.model, self.cache = model, PromptCache(model)
        self.options = {"draft_model": drafter, "num_draft_tokens": num_draft_tokens}
        self.processed = []

    def turn(self, prompt: list[int], tokens: int, interrupt: bool = False, shared: int | None = None) -> list[int]:
        """Generates `tokens` after `prompt`, of which later turns begin with the first `shared`.

        With `interrupt`, it closes a longer generation there.
        """
        cold = list(zip(range(tokens), generate_step(prompt, self.model, max_tokens=tokens), strict=False))
        new = self.cache.begin(prompt)
        self.processed.append(len(new))
        if shared is not None:
            new = self.cache.process(shared, step_size=7)
        limit = tokens * 3 if interrupt else tokens
        warm = generate_step(new, self.model, max_tokens=limit, prompt_cache=self.cache.cache, **self.options)
        emitted = []
        for (_, (token, logprobs, _)), (warm_token, warm_logprobs, _) in zip(cold, warm, strict=False):
            assert warm_token == token
            assert mx.array_equal(warm_logprobs, logprobs).item()
            self.cache.record(warm_token)
            emitted.append(warm_token)
        warm.close()
        assert self.cache.ids == (prompt + emitted)[:-1]
        assert len(emitted) == tokens
        return emitted


def ids(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCABULARY) for _ in range(length)]


@pytest.mark.parametrize("interrupt", [False, True])
@pytest.mark.parametrize("drafting", [False, True])
def test_turns_past_the_window_process_only_new_tokens(model, drafter, drafting, interrupt):
    conversation = Conversation(model, drafter if drafting else None)
    prompt = ids(9)
    for turn in range(4):
        reply = conversation.turn(prompt, 17 + turn, interrupt)
        prompt = prompt + reply + ids(5 + turn, seed=turn + 1)
    assert conversation.processed == [9, 1 + 5, 1 + 6, 1 + 7]


@with_rings
def test_a_reply_that_was_rendered_otherwise_is_processed_again_from_the_prompt(model, drafter):
    conversation = Conversation(model, drafter)
    prompt = ids(30)
    reply = conversation.turn(prompt, 90)
    conversation.turn(prompt + reply[:2] + ids(6, seed=1), 20)
    assert conversation.processed == [30, 2 + 6]


def test_a_turn_that_shares_only_a_short_prefix_is_exact(model, drafter):
    conversation = Conversation(model, drafter)
    prompt = ids(30)
    conversation.turn(prompt, 90)
    conversation.turn(prompt[:7] + ids(40, seed=1), 30)
    conversation.turn(ids(3, seed=2), 5)


def test_going_back_behind_a_checkpoint_is_exact(model, drafter):
    conversation = Conversation(model, drafter, num_draft_tokens=16)
    prompt = ids(40)
    conversation.turn(prompt, 60)
    conversation.turn(prompt + ids(2, seed=1), 1)
    conversation.turn(prompt[:10] + ids(3, seed=2), 8)


def test_the_same_prompt_again_processes_its_last_token(model):
    conversation = Conversation(model)
    prompt = ids(20)
    assert conversation.turn(prompt, 9) == conversation.turn(prompt, 9)
    assert conversation.processed == [20, 1]


@with_rings
def test_what_a_template_adds_only_before_a_reply_costs_no_more_than_itself(model, drafter):
    conversation, added = Conversation(model, drafter), ids(4, seed=9)
    prompt = ids(30)
    conversation.turn(prompt + added, 60, shared=30)
    prompt = prompt + ids(50, seed=1)  # the reply, rendered otherwise than it was emitted, and the next message
    conversation.turn(prompt + added, 60, shared=80)
    conversation.turn(prompt + added, 60, shared=80)  # the same again: another reply is wanted
    assert conversation.processed == [34, 50 + 4, 4]


@with_rings
def test_undoing_a_turn_goes_back_to_the_one_before(model):
    conversation = Conversation(model)
    first = ids(30)
    reply = conversation.turn(first, 60, shared=28)
    conversation.turn(first + reply + ids(30, seed=1), 50, shared=110)
    conversation.turn(first + reply[:20] + ids(9, seed=2), 20, shared=50)
    assert conversation.processed == [30, 1 + 30, 2 + 20 + 9]


@pytest.mark.parametrize("config", ["llama"], indirect=True)
def test_without_rings_nothing_is_processed_twice_wherever_a_turn_goes_back_to(model, drafter):
    conversation = Conversation(model, drafter)
    prompt = ids(40)
    reply = conversation.turn(prompt, 60)
    conversation.turn(prompt + reply[:13] + ids(6, seed=1), 20)
    conversation.turn(prompt[:17] + ids(9, seed=2), 20)
    assert conversation.processed == [40, 6, 9]
    assert conversation.cache.cache.checkpoints == []


@with_rings
def test_old_checkpoints_make_room_for_new_ones(model, monkeypatch):
    cache = model.make_cache()
    next(generate_step(ids(10), model, prompt_cache=cache))
    cache.checkpoint()
    monkeypatch.setattr("mtp_mlx.kv_cache.CHECKPOINT_BYTES", cache.checkpoints[0].nbytes * 2)
    for _ in range(3):
        model(mx.array([ids(5)]), cache)
        cache.checkpoint()
    assert [saved.offset for saved in cache.checkpoints] == [20, 25]


def test_a_prompt_interrupted_while_it_is_processed_leaves_what_was(model):
    cache, prompt = PromptCache(model), ids(90)

    def stop(done: int, total: int) -> None:
        if done == 30:
            raise StoppedError

    assert cache.begin(prompt) == prompt
    with pytest.raises(StoppedError):
        cache.process(85, 10, stop)
    assert cache.ids == prompt[:30] and cache.begin(prompt) == prompt[30:]
    assert cache.process(85, 10) == prompt[85:]


def test_random_conversations(model, drafter):
    rng = random.Random(0)
    for case in range(4):
        conversation = Conversation(model, rng.choice([None, drafter]))
        prompt = ids(rng.randint(1, 40), seed=case)
        for turn in range(4):
            reply = conversation.turn(prompt, rng.randint(1, 30), rng.random() < 0.5)
            kept = (prompt + reply)[: rng.choice([len(prompt), len(prompt) + len(reply), rng.randint(0, 60)])]
            prompt = kept + ids(rng.randint(1, 20), seed=100 * case + turn)


def test_processors_see_what_the_cache_holds(model):
    cache, seen = PromptCache(model), []

    def note(context: mx.array, logits: mx.array) -> mx.array:
        seen.append(context.tolist())
        return logits

    prompt = ids(12)
    for expected in (prompt, [*prompt, *ids(3, seed=1)]):
        seen.clear()
        new, options = cache.begin(expected), {"prompt_cache": cache.cache, "max_tokens": 1}
        next(generate_step(new, model, logits_processors=cache.processors([note]), **options))
        assert seen == [expected]


class StoppedError(Exception):
    pass


def test_a_prompt_interrupted_between_chunks_leaves_what_was_processed(model):
    cache = PromptCache(model)
    prompt = ids(40)

    def stop_after_two_chunks(done: int, total: int) -> None:
        if done == 16:
            raise StoppedError

    options = {"prefill_step_size": 8, "prompt_progress_callback": stop_after_two_chunks}
    with pytest.raises(StoppedError):
        next(generate_step(cache.begin(prompt), model, prompt_cache=cache.cache, **options))
    assert cache.ids == prompt[:16]
    new = cache.begin(prompt)
    assert new == prompt[16:]
    warm = [token for token, *_ in generate_step(new, model, max_tokens=20, prompt_cache=cache.cache)]
    assert warm == [token for token, *_ in generate_step(prompt, model, max_tokens=20)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(tiny_tokenizer.write_tokenizer(tmp_path_factory.mktemp("tokenizer")), set())


@pytest.mark.parametrize("ending", ["stop id", "stop string"])
def test_after_a_stop_the_cache_lacks_only_the_last_token(tokenizer, ending):
    size = tiny_tokenizer.VOCAB_SIZE
    model = tiny.build_target({**CONFIG, "vocab_size": size, "vocab_size_per_layer_input": size})
    prompt = ids(20)
    tokenizer.eos_token_ids = set()
    plain = list(stream_generate(model, tokenizer, prompt, max_tokens=30))
    tokens, text = [response.token for response in plain], "".join(response.text for response in plain)
    stop = [text[10:14]] if ending == "stop string" else []
    if ending == "stop id":
        tokenizer.eos_token_ids = {next(token for n, token in enumerate(tokens) if n > 5 and token not in tokens[:n])}
    cache = PromptCache(model)
    emitted, options = [], {"max_tokens": 30, "stop": stop, "prompt_cache": cache.cache}
    for response in stream_generate(model, tokenizer, cache.begin(prompt), **options):
        cache.record(response.token)
        emitted.append(response.token)
    assert response.finish_reason == "stop"
    assert emitted == tokens[: len(emitted)] and len(emitted) < 30
    assert cache.ids == prompt + emitted[:-1]
