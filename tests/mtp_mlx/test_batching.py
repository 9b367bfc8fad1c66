"""Batches: samplers, processors, stop sequences and stores of each row, mlx-lm's surface, misuse.

That rows equal their single runs is fuzzed in `test_batching_fuzz.py`.
"""

import importlib
import inspect
from operator import attrgetter

import mlx.core as mx
import pytest
from mlx_lm.generate import StopSequences

import mtp_mlx
from mtp_mlx import BatchGenerator, MisuseError, make_sampler
from mtp_mlx.decoding.batch import slots_for
from mtp_mlx.load import load_tokenizer
from mtp_mlx.prompt_cache import PromptCache
from tests import tiny_tokenizer
from tests.batches import GREEDY, RowScripts, alone, drafter, target, truth, untouched


def test_an_always_wrong_row_does_not_lower_the_acceptance_of_others():
    model = target("e2b")
    scripts = RowScripts(model.config.vocab_size)
    truths = [truth("e2b", 9), truth("e2b", 20)]
    generator = BatchGenerator(model, draft_model=scripts, num_draft_tokens=3, logits_processors=[untouched])
    scripts.follow(generator._batch)
    for known, wrong in zip(truths, (True, False), strict=True):
        scripts.add(known, wrong=wrong)
    uids = generator.insert([known.prompt for known in truths], [25, 25])
    last = {}
    while tokens := generator.next_generated():
        last |= {token.uid: token for token in tokens}
    wrong, right = (last[uid].speculation for uid in uids)
    assert wrong.accepted == 0 and wrong.rounds == 24
    assert right.accepted == right.drafted and right.rounds == 6


def test_speculation_goes_on_after_others_join_and_leave():
    model = target("e2b")
    generator = BatchGenerator(model, draft_model=drafter("e2b"), num_draft_tokens=2)
    (first,) = generator.insert([truth("e2b", 9).prompt], [30])
    drafted = {}
    generator.next_generated(), generator.next_generated()
    generator.insert([truth("e2b", 4).prompt], [5])
    while tokens := generator.next_generated():
        for token in tokens:
            drafted.setdefault(token.uid, []).append(token.speculation.drafted)
    assert drafted[first] == sorted(drafted[first]) and drafted[first][-1] == 2 * last_rounds(drafted[first])


def test_those_who_stay_keep_their_drafts_when_another_leaves(monkeypatch):
    drafted, draft = [], RowScripts.draft
    monkeypatch.setattr(RowScripts, "draft", lambda self, *given: drafted.append(given) or draft(self, *given))
    scripts = RowScripts(target("e2b").config.vocab_size)
    truths = [truth("e2b", length) for length in (9, 20, 4)]
    generator = BatchGenerator(target("e2b"), draft_model=scripts, num_draft_tokens=3, logits_processors=[untouched])
    scripts.follow(generator._batch)
    for known in truths:
        scripts.add(known, wrong=False)
    generator.insert([known.prompt for known in truths], [25, 9, 25])
    while tokens := generator.next_generated():
        last = tokens[-1]
    assert last.speculation.rounds == 6 and last.speculation.acceptance_rate == 1
    assert len(drafted) == 1 + 6


def last_rounds(drafted: list[int]) -> int:
    return drafted[-1] // 2


@pytest.mark.parametrize("sequences, slots", [(0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 16)])
def test_slots_are_powers_of_two(sequences, slots):
    assert slots_for(sequences) == slots


def test_seeds_and_temperatures_are_each_rows_own():
    model, prompts = target("e2b"), [truth("e2b", length).prompt for length in (4, 9, 20)]
    samplers = [make_sampler(1.0, seed=3), make_sampler(0.7, top_k=9, seed=4), None]
    options = {"draft_model": drafter("e2b"), "num_draft_tokens": 2}
    generator = BatchGenerator(model, **options)
    uids = generator.insert(prompts, [20] * 3, samplers=samplers)
    found = {uid: [] for uid in uids}
    while tokens := generator.next_generated():
        for token in tokens:
            found[token.uid].append(token.token)
    for uid, prompt, sampler in zip(uids, prompts, samplers, strict=True):
        alone = mtp_mlx.generate_step(prompt, model, sampler=sampler, max_tokens=20, **options)
        assert found[uid] == [token for token, *_ in alone]


def test_processors_are_each_rows_own():
    model, prompts = target("e2b"), [truth("e2b", length).prompt for length in (4, 9)]

    def ban_even(tokens: mx.array, logits: mx.array) -> mx.array:
        return mx.where(mx.arange(logits.shape[-1]) % 2 == 0, -mx.inf, logits)

    generator = BatchGenerator(model, draft_model=drafter("e2b"), num_draft_tokens=2)
    uids = generator.insert(prompts, [15, 15], logits_processors=[[ban_even], None])
    found = {uid: [] for uid in uids}
    while tokens := generator.next_generated():
        for token in tokens:
            found[token.uid].append(token.token)
    assert all(token % 2 for token in found[uids[0]])
    assert found[uids[1]] == truth("e2b", 9).tokens[:15]


def tokens_alone(model, prompt, count):
    return [token for token, _ in alone(model, prompt, GREEDY, model.make_cache(), count)]


def outputs(generator, prompts, limit, **lists):
    """The ids that each prompt was given."""
    uids = generator.insert(prompts, [limit] * len(prompts), **lists)
    found = {uid: [] for uid in uids}
    while tokens := generator.next_generated():
        for token in tokens:
            found[token.uid].append(token.token)
    return [found[uid] for uid in uids]


def half_processed(length):
    """A store with the first half of a prompt, as `PromptCache` has it, and the rest."""
    prompt = list(truth("e2b", length).prompt)
    conversation = PromptCache(target("e2b"))
    conversation.begin(prompt)
    conversation.process(length // 2)
    return conversation, prompt[length // 2 :]


def penalty(tokens: mx.array, logits: mx.array) -> mx.array:
    """Tells contexts apart: bans the tokens that are in there already."""
    return mx.put_along_axis(logits, tokens[None].astype(mx.int32), mx.array(-mx.inf), axis=-1)


@pytest.mark.parametrize("way", ["all_tokens", "PromptCache.processors"])
def test_processors_see_what_a_given_store_holds(way):
    known, other = truth("e2b", 20), truth("e2b", 9)
    conversation, rest = half_processed(20)
    if way == "all_tokens":
        given = {"all_tokens": [conversation.ids, []], "logits_processors": [[penalty], None]}
    else:
        given = {"logits_processors": [conversation.processors([penalty]), None]}
    generator = BatchGenerator(target("e2b"), draft_model=drafter("e2b"), num_draft_tokens=2)
    found = outputs(generator, [rest, other.prompt], 15, caches=[conversation.cache, None], **given)
    cold = mtp_mlx.generate_step(known.prompt, target("e2b"), logits_processors=[penalty], max_tokens=15)
    assert found == [[token for token, *_ in cold], other.tokens[:15]]


def test_stores_that_were_made_for_other_rounds():
    """Their rings have another length than those of the sequences beside them."""
    model, known, other = target("e2b"), truth("e2b", 200), truth("e2b", 9)
    store = model.make_cache(max_draft_tokens=2)
    model(mx.array([known.prompt[:100]]), store)
    generator = BatchGenerator(model, draft_model=drafter("e2b"), num_draft_tokens=3)
    found = outputs(generator, [known.prompt[100:], other.prompt], 20, caches=[store, None])
    assert found == [known.tokens[:20], other.tokens[:20]]


def test_a_returned_store_goes_back_without_the_longest_sequences_mark():
    generator = BatchGenerator(target("e2b"), draft_model=drafter("e2b"), num_draft_tokens=2)
    generator.insert([truth("e2b", 200).prompt, truth("e2b", 9).prompt], [20, 20])
    stores = []
    while tokens := generator.next_generated():
        stores += [token.prompt_cache for token in tokens if token.finish_reason]
    assert sorted(store.rewind(store.offset - 2) for store in stores) == [27, 218]


def test_a_processor_that_raises_costs_the_others_nothing():
    first, second = truth("e2b", 20), truth("e2b", 9)

    def picky(tokens: mx.array, logits: mx.array) -> mx.array:
        if tokens.size >= 26:
            raise ValueError("no further")
        return logits

    generator = BatchGenerator(target("e2b"), draft_model=drafter("e2b"), num_draft_tokens=2)
    uids = generator.insert([first.prompt, second.prompt], [20, 20], logits_processors=[[picky], None])
    found = {uid: [] for uid in uids}
    errors = 0
    while errors < 2 or generator._requests():
        try:
            for token in generator.next_generated():
                found[token.uid].append(token.token)
        except ValueError:
            errors += 1
            if errors == 2:
                generator.remove([uids[0]])
    assert found[uids[1]] == second.tokens[:20]
    assert found[uids[0]] == first.tokens[: len(found[uids[0]])]


def test_a_processor_that_raises_on_the_prompt():
    def never(tokens: mx.array, logits: mx.array) -> mx.array:
        raise ValueError("not at all")

    known = truth("e2b", 9)
    generator = BatchGenerator(target("e2b"))
    (bad,) = generator.insert([truth("e2b", 20).prompt], [5], logits_processors=[[never]])
    for _ in range(2):
        with pytest.raises(ValueError, match="not at all"):
            generator.next_generated()
    generator.remove([bad])
    assert outputs(generator, [known.prompt], 5) == [known.tokens[:5]]


def test_stop_sequences_end_a_row_and_its_cache_holds_what_came_before():
    known = truth("e2b", 20)
    stop = known.tokens[5:7]
    generator = BatchGenerator(target("e2b"), draft_model=drafter("e2b"), num_draft_tokens=3, stop_tokens=[stop])
    generator.insert([known.prompt], [30])
    tokens = []
    while step := generator.next_generated():
        tokens += step
    end = next(n for n in range(1, 30) if known.tokens[n - 1 : n + 1] == stop) + 1
    assert [token.token for token in tokens] == known.tokens[:end]
    assert tokens[-1].finish_reason == "stop" and tokens[-1].prompt_cache.offset == 20 + end


def test_memory_does_not_grow_with_rounds(fuzz_cases):
    """`--fuzz-cases 4000` runs 5,000 rounds."""
    model = target("12b")
    generator = BatchGenerator(model, draft_model=drafter("12b"), num_draft_tokens=2)
    sizes, rounds = [], 0
    while rounds < max(120, fuzz_cases * 5 // 4):
        generator.insert([truth("12b", 9).prompt, truth("12b", 4).prompt], [12, 7])
        while generator.next_generated():
            rounds += 1
        sizes.append(mx.get_active_memory())
    settled = sizes[len(sizes) // 3 :]
    assert max(settled) - min(settled) < 200_000


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(tiny_tokenizer.write_tokenizer(tmp_path_factory.mktemp("tokenizer")), {1})


def test_batch_generate_has_mlx_lms_response(tokenizer):
    model = target("e2b")
    prompts = [truth("e2b", length).prompt for length in (4, 9, 20)]
    response = mtp_mlx.batch_generate(
        model,
        tokenizer,
        prompts,
        max_tokens=[5, 9, 14],
        draft_model=drafter("e2b"),
        return_prompt_caches=True,
        return_token_ids=True,
        return_logprobs=True,
    )
    for n, (length, limit) in enumerate(((4, 5), (9, 9), (20, 14))):
        known = truth("e2b", length)
        ids = response.token_ids[n]
        assert ids == known.tokens[: len(ids)] and len(ids) in (
            limit,
            *(i for i, t in enumerate(known.tokens) if t == 1),
        )
        assert response.texts[n] == tokenizer.decode(ids)
        assert len(response.logprobs[n]) == len(ids) and max(response.logprobs[n]) <= 0
        assert response.caches[n].offset == length + limit
    assert (response.stats.generation_tokens, response.stats.prompt_tokens) == (28, 33)


def test_a_second_turn_gives_its_own_tokens_only(tokenizer):
    """As with mlx-lm, whose returned stores hold all that was emitted."""
    model, further = target("e2b"), [7, 8, 9]
    options = {"draft_model": drafter("e2b"), "return_token_ids": True}
    prompts = [list(truth("e2b", length).prompt) for length in (4, 20)]
    first = mtp_mlx.batch_generate(model, tokenizer, prompts, max_tokens=[5, 9], return_prompt_caches=True, **options)
    second = mtp_mlx.batch_generate(model, tokenizer, [further] * 2, first.caches, 6, **options)
    for prompt, reply, ids in zip(prompts, first.token_ids, second.token_ids, strict=True):
        assert ids == tokens_alone(model, [*prompt, *reply, *further], len(ids))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"max_tokens": [1, 2, 3]}, "max_tokens must have one entry for each prompt, 2 .given: 3 entries"),
        ({"prompt_caches": [None]}, "caches must have one entry"),
        ({"samplers": [None] * 5}, "samplers must have one entry"),
        ({"logits_processors": [[]]}, "logits_processors must have one entry for each prompt, 2"),
        ({"admission_step_size": 0}, "admission_step_size must be a positive whole number"),
        ({"completion_batch_size": -1}, "completion_batch_size must be a positive whole number"),
        ({"max_tokens": 0}, "max_tokens must be positive"),
        ({"prompts": [[], [1]]}, "the prompt must have at least one token"),
        ({"prompts": [[5000], [1]]}, "token ids must be between"),
        ({"samplers": [make_sampler(lenient=True), None]}, "lenient requests must not share"),
        ({"num_draft_tokens": 99, "draft_model": drafter("e2b")}, "number of draft tokens must be"),
    ],
)
def test_misuse(tokenizer, arguments, message):
    arguments = {"prompts": [[1], [2]], **arguments}
    with pytest.raises(MisuseError, match=message):
        mtp_mlx.batch_generate(target("e2b"), tokenizer, **arguments)


def test_segments_are_processed_to_their_ends_and_progress_is_told():
    known = truth("e2b", 20)
    generator = BatchGenerator(target("e2b"), draft_model=drafter("e2b"), num_draft_tokens=2, prefill_step_size=6)
    (uid,) = generator.insert_segments([[known.prompt[:8], known.prompt[8:]]], [5])
    told, held = [], []
    while not (step := generator.next())[1]:
        told += [(each.progress, each.end_of_segment, each.end_of_prompt) for each in step[0]]
        held += [ids for _, ids in generator.extract_cache([uid]).values()]
    places = [(6, False, False), (8, True, False), (14, False, False), (20, True, True)]
    assert told == [((done, 20), *ends) for done, *ends in places]
    assert held == [list(known.prompt[:done]) for done, *_ in places]
    store, ids = generator.extract_cache([uid])[uid]
    assert ids == [*known.prompt, known.tokens[0]] and store.offset == 21
    rest = []
    while tokens := generator.next_generated():
        rest += [token.token for token in tokens]
    assert rest == known.tokens[1:5]


def test_stop_sequences_of_each_row():
    known, other = truth("e2b", 20), truth("e2b", 9)
    stops = [StopSequences([known.tokens[2:4]]), StopSequences([])]
    found = outputs(BatchGenerator(target("e2b")), [known.prompt, other.prompt], 12, stop_sequences=stops)
    assert found == [known.tokens[:4], other.tokens[:12]]


@pytest.mark.parametrize("name", ["batch_generate", "BatchGenerator", "BatchGenerator.insert"])
def test_mlx_lms_arguments(name):
    """A script for mlx-lm runs with another import and a `draft_model`."""
    mlx_lm = importlib.import_module("mlx_lm.generate")  # the package has a function of that name
    without = {"max_kv_size", "stream", "kwargs"}  # a window that forgets; the stream is the default one
    theirs, ours = (list(inspect.signature(attrgetter(name)(module)).parameters) for module in (mlx_lm, mtp_mlx))
    assert set(theirs) - set(ours) <= without
    if name == "BatchGenerator.insert":
        assert ours == theirs


def test_all_tokens_must_be_what_the_store_holds():
    conversation, rest = half_processed(20)
    generator = BatchGenerator(target("e2b"))
    with pytest.raises(MisuseError, match="all_tokens must be the ids that its cache holds, 10 .given: 3 ids"):
        generator.insert([rest], caches=[conversation.cache], all_tokens=[[1, 2, 3]])
    with pytest.raises(MisuseError, match="all_tokens must have one entry"):
        generator.insert([rest], caches=[conversation.cache], all_tokens=[])
    assert generator.next_generated() == []
