"""Every row of a batch is what its sequence is alone, to the bit, whoever runs beside it: schedules at random.

`pytest tests/mtp_mlx/test_batching_fuzz.py --fuzz-cases 4000` runs 1,000 of them. What decoding alone gives, and the
traces of compiled rounds, are made once for all schedules.
"""

import random
from dataclasses import dataclass, field

import mlx.core as mx

from mtp_mlx import BatchGenerator
from mtp_mlx.batching import BatchToken
from mtp_mlx.decoding.sampling import Sampler
from tests.batches import (
    ARCHITECTURES,
    COOL,
    GREEDY,
    OWN,
    WARM,
    RowScripts,
    Truth,
    alone,
    drafter,
    target,
    truth,
    untouched,
)

LENGTHS = (1, 2, 5, 9, 13, 37, 65, 200)
MOST_DRAFTS, MOST_TOKENS = 4, 20
FURTHER = 3  # tokens that a returned store is continued for
SAMPLERS = {"greedy": (GREEDY,), "seeds": (GREEDY, WARM, COOL), "own": (GREEDY, OWN)}


@dataclass
class Sequence:
    """One that was inserted: what it must give, and what it gave."""

    known: Truth
    sampler: Sampler | None
    limit: int
    emitted: list[BatchToken] = field(default_factory=list)


class Schedule:
    """Sequences that come and go at random, and what each was given."""

    def __init__(self, rng: random.Random):
        self.rng, self.architecture = rng, rng.choice(list(ARCHITECTURES))
        self.model = target(self.architecture)
        self.kind, self.sampling = rng.choice(("scripts", "neural", "none")), rng.choice(list(SAMPLERS))
        # Compiled rounds are a trace for each depth and number of slots: few depths, and hardly any with seeds.
        eager = self.kind == "scripts" or (self.sampling == "seeds" and rng.random() < 0.95)
        self.depth = rng.randint(0, MOST_DRAFTS) if eager else rng.choice((2, 3))
        self.scripts = RowScripts(self.model.config.vocab_size)
        self.generator = BatchGenerator(
            self.model,
            draft_model={"scripts": self.scripts, "neural": drafter(self.architecture), "none": None}[self.kind],
            num_draft_tokens=self.depth,
            logits_processors=[untouched] if eager else None,
            completion_batch_size=rng.choice((3, 5, 8, 8)),
            prefill_step_size=rng.choice((7, 512, 512)),
            admission_step_size=rng.choice((5, 16, 64, 64)),
        )
        self.scripts.follow(self.generator._batch)
        self.burst = rng.choice((1, 3, 9))  # sequences that come at once
        self.sequences: dict[int, Sequence] = {}
        self.waiting = [self.sequence(length) for length in rng.choices(LENGTHS, k=rng.randint(3, 9))]

    def __str__(self) -> str:
        return f"{self.architecture}, {self.kind}, {self.sampling}, {self.depth} drafts"

    def sequence(self, length: int) -> Sequence:
        sampler = self.rng.choice(SAMPLERS[self.sampling])
        known = truth(self.architecture, length, sampler, MOST_TOKENS + FURTHER)
        self.scripts.add(known, sampler, wrong=self.rng.random() < 0.5)
        return Sequence(known, sampler, self.rng.randint(1, MOST_TOKENS))

    def run(self) -> None:
        while self.waiting or self.generator._requests():
            chance = self.rng.random()
            if chance < 0.4:
                for _ in range(min(self.burst, len(self.waiting))):
                    self.insert(self.waiting.pop())
            elif chance < 0.43:
                self.cancel()
            elif chance < 0.435:
                self.close()
            for token in self.generator.next_generated():
                self.sequences[token.uid].emitted.append(token)
        for sequence in self.sequences.values():
            self.check(sequence)

    def insert(self, sequence: Sequence) -> None:
        """The whole prompt, or its end after a store with its beginning."""
        prompt = list(sequence.known.prompt)
        held = self.rng.choice((0, 0, len(prompt) // 2))
        store = self.model.make_cache()
        if held:
            self.model(mx.array([prompt[:held]]), store)
        given = {"caches": [store], "all_tokens": [prompt[:held]]} if held else {}
        (uid,) = self.generator.insert([prompt[held:]], [sequence.limit], samplers=[sequence.sampler], **given)
        assert store.offset == held
        self.sequences[uid] = sequence

    def cancel(self) -> None:
        """Any of them: running, in the middle of its prompt, or not begun."""
        requests = self.generator._requests()
        if requests:
            uid = self.rng.choice(requests).uid
            caches = self.generator.remove([uid], return_prompt_caches=True)
            sequence = self.sequences[uid]
            sequence.limit = len(sequence.emitted)
            store, ids = caches[uid]
            everything = [*sequence.known.prompt, *sequence.known.tokens]
            assert ids == everything[: store.offset]
            self.check_goes_on(sequence, store)

    def close(self) -> None:
        for request in self.generator._requests():
            self.sequences[request.uid].limit = len(self.sequences[request.uid].emitted)
        self.generator.close()
        assert self.generator.next_generated() == []

    def check(self, sequence: Sequence) -> None:
        known, tokens = sequence.known, sequence.emitted
        case = f"{self}, prompt of {len(known.prompt)}"
        assert [token.token for token in tokens] == known.tokens[: sequence.limit], case
        if tokens:
            emitted = mx.stack([token.logits for token in tokens])
            assert mx.array_equal(emitted, known.logits[: len(tokens)]).item(), case
        if tokens and tokens[-1].finish_reason:
            assert tokens[-1].finish_reason == "length"
            assert tokens[-1].all_tokens == [*known.prompt, *known.tokens[: sequence.limit]]
            self.check_goes_on(sequence, tokens[-1].prompt_cache)

    def check_goes_on(self, sequence: Sequence, store) -> None:
        """Decoding from a sequence's store equals never having stopped."""
        known, count = sequence.known, len(sequence.emitted)
        everything = [*known.prompt, *known.tokens]
        held = len(known.prompt) + count - 1
        assert store.offset == held + 1 if count else store.offset <= held + 1
        store.rewind(held)  # the last token goes in again
        if self.rng.random() < 0.3:  # it takes as long as all the rest
            pairs = alone(self.model, everything[store.offset : held + 1], sequence.sampler, store, FURTHER)
            assert [token for token, _ in pairs] == known.tokens[count : count + FURTHER], str(self)


def test_rows_equal_their_single_runs_to_the_bit(fuzz_cases, fuzz_seed):
    rng = random.Random(fuzz_seed)
    for _ in range(max(6, fuzz_cases // 4)):
        Schedule(rng).run()
