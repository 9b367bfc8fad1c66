"""Several sequences in one round: a slot each, rows that come and go between rounds.

Each slot has its own length on the device, so that rows accept different counts without padding or holes. A slot
without a sequence computes along, and nobody reads what; there are as many slots as the next power of two, so that a
handful of batch sizes is traced.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from mtp_mlx.decoding.acceptance import rule_for
from mtp_mlx.decoding.compiled import round_for
from mtp_mlx.decoding.depth import Depth
from mtp_mlx.decoding.round import Outcome, Round, State
from mtp_mlx.decoding.sampling import LogitsProcessor, Sampler
from mtp_mlx.decoding.slots import batch_of, put, take
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.drafter import Drafter
from mtp_mlx.models.target import Target

# The policy for so many slots.
DepthFor = Callable[[Round, int], Depth]


@dataclass
class Member:
    """A sequence in the batch.

    Attributes:
        length: tokens that its slot of the store holds.
        history: every token so far, the one included that the store does not hold yet.
    """

    sampler: Sampler | None
    processors: list[LogitsProcessor]
    history: list[int]
    length: int


@dataclass
class Joining:
    """What prefill leaves of a sequence: its store, its first token [1, 1], and the hidden state it came from."""

    member: Member
    cache: KVCache
    token: mx.array
    hidden: mx.array


@dataclass
class Decided:
    """What a round did to one sequence."""

    member: Member
    tokens: list[int]
    accepted: int
    verified: int
    logits: mx.array  # [k+1, V], of its rows


class Batch:
    """The slots of one pair. Sequences join and leave between rounds: after `finish`, before `dispatch`."""

    def __init__(self, model: Target, drafter: Drafter | None, depth_for: DepthFor):
        self.model, self.drafter, self.depth_for = model, drafter, depth_for
        self.slots: list[Member | None] = []
        self.cache: KVCache | None = None
        self.in_flight: Outcome | None = None
        self._shared_time = self._shares_time_next = False

    def __len__(self) -> int:
        return sum(sequence is not None for sequence in self.slots)

    @property
    def sequences(self) -> list[Member]:
        return [sequence for sequence in self.slots if sequence is not None]

    def take(self, sequence: Member, offset: int) -> KVCache:
        """A store of its own with the first `offset` tokens of a sequence."""
        return take(self.cache, self.slots.index(sequence), offset)

    def change(self, joining: Sequence[Joining], leaving: Sequence[Member]) -> None:
        """Lets sequences in and out. Those who stay keep their drafts, unless somebody joins: then all draft anew."""
        if not joining and not leaving:
            return
        self.slots = [None if any(s is gone for gone in leaving) else s for s in self.slots]
        wanted = slots_for(len(self) + len(joining))
        if wanted != len(self.slots):
            self._rebuild(joining, wanted)
        else:
            self._fill(joining)
        if len(self):
            self._shared_time = True  # with moving and drafting
            known = None if joining else self.round.rule
            self._choose_round()
            if self.round.rule != known:
                self._draft(self.state.token, self.state.hidden)

    def dispatch(self) -> None:
        """Starts a round, without waiting."""
        self._dispatched = time.perf_counter()
        self.cache.offset = max(sequence.length for sequence in self.sequences)
        self.cache.reserve(1 + self.state.drafts.count)
        histories = [sequence.history[:-1] if sequence else [0] for sequence in self.slots if self.round.processors]
        outcome, hidden = self.round.verify(self.cache, self.state, histories, self.controls)
        mx.async_eval(outcome.decided, outcome.token, outcome.logits, hidden, self.cache.arrays)
        self._draft(outcome.token, hidden)
        self.in_flight = outcome

    def finish(self) -> list[Decided]:
        """Waits for the round in flight, and says what it did to each sequence; empty where there is none."""
        if self.in_flight is None:
            return []
        outcome = self.in_flight
        rows = outcome.decided.tolist()
        self.in_flight = None
        decided, verified = [], outcome.verified
        for slot, (sequence, (accepted, *tokens)) in enumerate(zip(self.slots, rows, strict=True)):
            if sequence is not None:
                tokens = tokens[: accepted + 1]
                sequence.length += len(tokens)
                sequence.history += tokens
                decided.append(Decided(sequence, tokens, accepted, verified, outcome.logits[slot]))
        seconds = None if self._shared_time else time.perf_counter() - self._dispatched
        self._shared_time = self._shares_time_next
        self._shares_time_next = False
        self.depth.observe(verified, [d.accepted for d in decided], self.state.drafts.count, seconds)
        return decided

    def share_time(self) -> None:
        """Says that the device got other work after the round in flight: the next one's time will not be its own."""
        self._shares_time_next = True

    def _draft(self, token: mx.array, hidden: mx.array) -> None:
        count = min(self.depth.choose(), self.cache.max_draft_tokens)
        self.state = self.round.draft(self.cache, token, hidden, count, self.controls)
        mx.async_eval(self.state.drafts.arrays)

    def _choose_round(self) -> None:
        """The rule, its values and the policy of the sequences that are there."""
        someone = self.sequences[0]
        samplers = [(sequence or someone).sampler for sequence in self.slots]
        processors = [sequence.processors if sequence else [] for sequence in self.slots]
        rule, self.controls = rule_for(samplers)
        self.round = round_for(self.model, self.drafter, rule, processors if any(processors) else ())
        self.depth = self.depth_for(self.round, len(self.slots))

    def _fill(self, joining: Sequence[Joining]) -> None:
        """Puts sequences into slots that are free."""
        for each in joining:
            slot = self.slots.index(None)
            self.slots[slot] = each.member
            put(self.cache, slot, each.cache)
            here = (mx.arange(len(self.slots)) == slot)[:, None]
            self.state.token = mx.where(here, each.token, self.state.token)
            self.state.hidden = mx.where(here[:, :, None], each.hidden, self.state.hidden)

    def _rebuild(self, joining: Sequence[Joining], wanted: int) -> None:
        """A store of another number of slots, with those who stay at its beginning."""
        staying = [n for n, member in enumerate(self.slots) if member is not None]
        members = [self.slots[n] for n in staying] + [each.member for each in joining]
        if not members:
            self.slots, self.cache = [], None
            return
        caches = [take(self.cache, n, self.slots[n].length) for n in staying] + [each.cache for each in joining]
        states = [self.state.rows(staying)] if staying else []
        states += [State(each.token, each.hidden, None) for each in joining]
        free = wanted - len(members)
        self.slots = members + [None] * free
        self.cache = batch_of(caches + [None] * free)
        token, hidden = (mx.concatenate(parts) for parts in zip(*((s.token, s.hidden) for s in states), strict=True))
        together = State(token, hidden, None if joining else states[0].drafts)
        self.state = together.rows([*range(len(members)), *[0] * free])


def slots_for(sequences: int) -> int:
    """The next power of two, 0 for none."""
    return 1 << (sequences - 1).bit_length() if sequences else 0
