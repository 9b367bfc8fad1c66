"""A compiled round is traced once for each depth and size of the buffers, and sizes grow logarithmically."""

import math
from collections.abc import Sequence

import mlx.core as mx
import pytest

from mtp_mlx import kv_cache
from mtp_mlx.decoding.compiled import CompiledRound
from mtp_mlx.decoding.depth import MOST, AutoDepth
from mtp_mlx.decoding.round import Outcome, State
from mtp_mlx.decoding.stream import TokenStream
from mtp_mlx.kv_cache import CAPACITY_STEP, KVCache
from tests import tiny

CONFIG = tiny.target_config("31b", layer_types=[tiny.S, tiny.F])


class WatchedRound(CompiledRound):
    """Notes which function was called with how many drafts and how large buffers."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.shapes: set[tuple[str, int, int]] = set()

    def verify(self, cache: KVCache, state: State, *rest) -> tuple[Outcome, mx.array]:
        self.shapes.add(("verify", state.drafts.count, cache.capacity))
        return super().verify(cache, state, *rest)

    def draft(self, cache: KVCache, token: mx.array, hidden: mx.array, num_tokens: int, *rest) -> State:
        if num_tokens:
            self.shapes.add(("draft", num_tokens, cache.capacity))
        return super().draft(cache, token, hidden, num_tokens, *rest)


class ChangingDepth(AutoDepth):
    """Is told that drafting is cheap and drafts are right for a while, then that none is, and so on: so it deepens to
    the most, and comes back to plain decoding."""

    rounds = 0

    def observe(self, verified: int, accepted: Sequence[int], drafted: int, seconds: float | None) -> None:
        self.rounds += 1
        right = self.rounds // 60 % 2 == 0
        super().observe(verified, [verified if right else 0], drafted, 1 + 0.1 * drafted)


@pytest.fixture
def round() -> WatchedRound:
    return WatchedRound(tiny.build_target(CONFIG), tiny.build_drafter(tiny.drafter_config(CONFIG, clustered=True)))


def generate(round: WatchedRound, tokens: int) -> KVCache:
    cache = round.model.make_cache()
    stream = TokenStream(round, cache, [5, 6, 7], max_tokens=tokens, depth=ChangingDepth())
    assert len(list(stream)) == tokens
    return cache


def test_a_long_generation_is_traced_once_for_each_depth_and_capacity(round, monkeypatch):
    monkeypatch.setattr(kv_cache, "CAPACITY_STEP", 16)
    generate(round, 300)
    depths = {drafts for _, drafts, _ in round.shapes}
    capacities = {capacity for _, _, capacity in round.shapes}
    assert depths == set(range(MOST + 1))
    assert len(capacities) > 10
    assert round.traces == len(round.shapes) <= 2 * len(depths) * len(capacities)

    traces = round.traces
    generate(round, 300)
    assert round.traces == traces == len(round.shapes)


def test_capacities_grow_logarithmically():
    cache, capacities = KVCache(tiny.build_target(CONFIG).config), []
    lengths = [8 * CAPACITY_STEP * 2**n for n in range(8)]
    for tokens in range(1, lengths[-1] + 1):
        cache.offset = tokens - 1
        cache.reserve(1)
        if cache.capacity not in capacities[-1:]:
            capacities.append(cache.capacity)
        assert tokens <= cache.capacity <= max(tokens + CAPACITY_STEP, 1.25 * tokens)
    for length in lengths:
        grown = sum(capacity <= length for capacity in capacities)
        assert grown == 8 + 4 * math.log2(length / (8 * CAPACITY_STEP))  # four times with each doubling
