"""Every row of a batch is what its sequence is alone, to the bit, whoever runs beside it.

`pytest tests/mtp_mlx/test_batching.py --fuzz-cases 1000` runs the long version.
"""

import random
from dataclasses import dataclass
from functools import cache

import mlx.core as mx
import mlx.nn as nn
import pytest

import mtp_mlx
from mtp_mlx import BatchGenerator, MisuseError, make_sampler
from mtp_mlx.decoding.batch import slots_for
from mtp_mlx.decoding.plain import plain_tokens
from mtp_mlx.load import load_tokenizer
from tests import tiny, tiny_tokenizer

WINDOW, CONTINUATION, MOST_DRAFTS = 12, 36, 6
LENGTHS = (1, 2, 4, 9, 13, 20, 37, 64, 65, 130, 200)


@dataclass(frozen=True)
class Truth:
    """A prompt and what plain decoding makes of it."""

    prompt: tuple[int, ...]
    tokens: list[int]
    logits: list[mx.array]


@cache
def target(architecture: str) -> tiny.Gemma4:
    return tiny.build_target(tiny.target_config(architecture, sliding_window=WINDOW))


@cache
def drafter(architecture: str) -> tiny.Gemma4Assistant:
    config = tiny.target_config(architecture, sliding_window=WINDOW)
    return tiny.build_drafter(tiny.drafter_config(config, clustered=True))


@cache
def truth(architecture: str, length: int) -> Truth:
    model, rng = target(architecture), random.Random(f"{architecture}/{length}")
    prompt = tuple(rng.randrange(model.config.vocab_size) for _ in range(length))
    plain = plain_tokens(model, list(prompt))
    pairs = [next(plain) for _ in range(CONTINUATION)]
    return Truth(prompt, [token for token, _ in pairs], [logits for _, logits in pairs])


class RowScripts(nn.Module):
    """Proposes to each slot from its own sequence's known continuation: right ones for some, wrong ones for others."""

    def __init__(self, vocabulary: int):
        super().__init__()
        self.vocabulary, self.scripts, self.batch = vocabulary, {}, None

    def draft(self, model, store, token, hidden, num_tokens, pick=None) -> mx.array:
        # Looks at the host's slots, so it works in eager rounds only.
        idle = [0] * 300
        rows = [self.script(member.history) if member else idle for member in self.batch.slots]
        positions = store.lengths[:, None] + 1 + mx.arange(num_tokens)
        return mx.take_along_axis(mx.array(rows), mx.minimum(positions, 299), axis=1)

    def script(self, history: list[int]) -> list[int]:
        known, wrong = next((s for s in self.scripts.items() if tuple(history[: len(s[0])]) == s[0]), None)
        ids = [*known, *wrong[1]]
        shift = 1 if wrong[0] else 0
        return [(token + shift) % self.vocabulary for token in ids][:300] + [0] * (300 - len(ids))


def untouched(tokens: mx.array, logits: mx.array) -> mx.array:
    """A processor that changes nothing: rounds with one are eager."""
    return logits


class Schedule:
    """Sequences that come and go at random, and what each was given."""

    def __init__(self, rng: random.Random):
        self.rng, self.architecture = rng, rng.choice(list(tiny.ARCHITECTURES))
        self.model, self.kind = target(self.architecture), rng.choice(("scripts", "neural", "none"))
        self.depth = rng.randint(0, MOST_DRAFTS) if self.kind == "scripts" else rng.choice((2, 3))
        draft_model = {"scripts": RowScripts(self.model.config.vocab_size), "none": None}.get(
            self.kind, drafter(self.architecture)
        )
        self.generator = BatchGenerator(
            self.model,
            draft_model=draft_model,
            num_draft_tokens=self.depth,
            logits_processors=[untouched] if self.kind == "scripts" else None,
            completion_batch_size=rng.choice((2, 5, 8)),
            admission_step_size=512,
        )
        if self.kind == "scripts":
            draft_model.batch = self.generator._batch
        self.truths: dict[int, Truth] = {}
        self.limits: dict[int, int] = {}
        self.emitted: dict[int, list] = {}
        self.waiting = [self.truth_for(length) for length in rng.sample(LENGTHS, rng.randint(1, 7))]

    def truth_for(self, length: int) -> Truth:
        known = truth(self.architecture, length)
        if self.kind == "scripts":
            self.generator.drafter.scripts[known.prompt] = (self.rng.random() < 0.5, known.tokens)
        return known

    def insert(self) -> None:
        known, limit = self.waiting.pop(), self.rng.randint(1, CONTINUATION - 4)
        (uid,) = self.generator.insert([known.prompt], [limit])
        self.truths[uid], self.limits[uid], self.emitted[uid] = known, limit, []

    def cancel(self) -> None:
        running = self.generator._requests()
        if running:
            uid = self.rng.choice(running).uid
            caches = self.generator.remove([uid], return_prompt_caches=True)
            if self.emitted[uid]:
                self.check_goes_on(uid, caches[uid])
            self.limits[uid] = len(self.emitted[uid])

    def run(self) -> None:
        while self.waiting or self.generator._requests():
            if self.waiting and self.rng.random() < 0.4:
                self.insert()
            if self.rng.random() < 0.03:
                self.cancel()
            for token in self.generator.next():
                self.emitted[token.uid].append(token)
        for uid, known in self.truths.items():
            self.check(uid, known)

    def check(self, uid: int, known: Truth) -> None:
        tokens, limit = self.emitted[uid], self.limits[uid]
        case = f"{self.architecture} {self.kind} k={self.depth} prompt {len(known.prompt)}"
        assert [token.token for token in tokens] == known.tokens[:limit], case
        for token, logits in zip(tokens, known.logits, strict=False):
            assert mx.array_equal(token.logits, logits).item(), case
        if tokens and tokens[-1].finish_reason:
            assert tokens[-1].finish_reason == "length"
            assert tokens[-1].all_tokens == [*known.prompt, *known.tokens[:limit]]
            self.check_goes_on(uid, tokens[-1].prompt_cache)

    def check_goes_on(self, uid: int, store) -> None:
        """Decoding from a sequence's store equals never having stopped."""
        known, count = self.truths[uid], len(self.emitted[uid])
        assert store.offset == len(known.prompt) + count - 1
        plain = plain_tokens(self.model, [known.tokens[count - 1]], store)
        assert [next(plain)[0] for _ in range(3)] == known.tokens[count : count + 3]


def test_rows_equal_their_single_runs_to_the_bit(fuzz_cases, fuzz_seed):
    rng = random.Random(fuzz_seed)
    for _ in range(max(4, fuzz_cases // 4)):
        Schedule(rng).run()


def test_an_always_wrong_row_does_not_lower_the_acceptance_of_others():
    model = target("e2b")
    scripts = RowScripts(model.config.vocab_size)
    truths = [truth("e2b", 9), truth("e2b", 20)]
    generator = BatchGenerator(model, draft_model=scripts, num_draft_tokens=3, logits_processors=[untouched])
    scripts.batch = generator._batch
    scripts.scripts = {known.prompt: (wrong, known.tokens) for known, wrong in zip(truths, (True, False), strict=True)}
    uids = generator.insert([known.prompt for known in truths], [25, 25])
    last = {}
    while tokens := generator.next():
        last |= {token.uid: token for token in tokens}
    wrong, right = (last[uid].speculation for uid in uids)
    assert wrong.accepted == 0 and wrong.rounds == 24
    assert right.accepted == right.drafted and right.rounds == 6


def test_speculation_goes_on_after_others_join_and_leave():
    model = target("e2b")
    generator = BatchGenerator(model, draft_model=drafter("e2b"), num_draft_tokens=2)
    (first,) = generator.insert([truth("e2b", 9).prompt], [30])
    drafted = {}
    generator.next(), generator.next()
    generator.insert([truth("e2b", 4).prompt], [5])
    while tokens := generator.next():
        for token in tokens:
            drafted.setdefault(token.uid, []).append(token.speculation.drafted)
    assert drafted[first] == sorted(drafted[first]) and drafted[first][-1] == 2 * last_rounds(drafted[first])


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
    while tokens := generator.next():
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
    while tokens := generator.next():
        for token in tokens:
            found[token.uid].append(token.token)
    assert all(token % 2 for token in found[uids[0]])
    assert found[uids[1]] == truth("e2b", 9).tokens[:15]


def test_stop_sequences_end_a_row_and_its_cache_holds_what_came_before():
    known = truth("e2b", 20)
    stop = known.tokens[5:7]
    generator = BatchGenerator(target("e2b"), draft_model=drafter("e2b"), num_draft_tokens=3, stop_tokens=[stop])
    generator.insert([known.prompt], [30])
    tokens = []
    while step := generator.next():
        tokens += step
    end = next(n for n in range(1, 30) if known.tokens[n - 1 : n + 1] == stop) + 1
    assert [token.token for token in tokens] == known.tokens[:end]
    assert tokens[-1].finish_reason == "stop" and tokens[-1].prompt_cache.offset == 20 + end - 1


def test_memory_does_not_grow_with_rounds():
    model = target("12b")
    generator = BatchGenerator(model, draft_model=drafter("12b"), num_draft_tokens=2)
    sizes = []
    for n in range(30):
        generator.insert([truth("12b", 9).prompt, truth("12b", 4).prompt], [12, 7])
        while generator.next():
            pass
        if n >= 10:
            sizes.append(mx.get_active_memory())
    assert max(sizes) - min(sizes) < 200_000


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
        assert response.caches[n].offset == length + limit - 1
    assert (response.stats.generation_tokens, response.stats.prompt_tokens) == (28, 33)
    last = [[ids[-1]] for ids in response.token_ids]
    again = mtp_mlx.batch_generate(
        model, tokenizer, last, response.caches, 4, return_token_ids=True, draft_model=drafter("e2b")
    )
    for n, length in enumerate((4, 9, 20)):
        start = len(response.token_ids[n])
        assert again.token_ids[n] == truth("e2b", length).tokens[start : start + 4]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"max_tokens": [1, 2, 3]}, "max_tokens must have one entry for each prompt, 2 .given: 3 entries"),
        ({"prompt_caches": [None]}, "caches must have one entry"),
        ({"samplers": [None] * 5}, "samplers must have one entry"),
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
