"""The device is waited for once a round, and the next round is on its way before a token is handed out."""

import mlx.core as mx
import pytest

from mtp_mlx.decoding.compiled import CompiledRound
from mtp_mlx.decoding.depth import FixedDepth
from mtp_mlx.decoding.stream import TokenStream
from tests import tiny

WAITS = ("tolist", "item", "__bool__", "__int__", "__float__", "__index__")


@pytest.fixture
def waits(monkeypatch) -> list[str]:
    """Names of the calls that made the host wait for the device, as they happen."""
    seen = []

    def watched(owner, name):
        original = vars(owner)[name]

        def call(*args, **kwargs):
            seen.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    for name in WAITS:
        watched(mx.array, name)
    for name in ("eval", "synchronize"):
        watched(mx, name)
    return seen


@pytest.fixture(scope="module")
def pair():
    config = tiny.target_config("e2b")
    return tiny.build_target(config), tiny.build_drafter(tiny.drafter_config(config, clustered=True))


def test_one_wait_a_round(pair, waits):
    model, drafter = pair
    stream = TokenStream(
        CompiledRound(model, drafter), model.make_cache(), [5, 6, 7], max_tokens=40, depth=FixedDepth(3)
    )
    tokens = iter(stream)
    next(tokens)
    assert waits == ["tolist"]
    waits.clear()
    assert len(list(tokens)) == 39
    assert waits == ["tolist"] * stream.speculation.rounds


def test_the_next_round_is_dispatched_before_a_token_is_handed_out(pair):
    model, drafter = pair
    events = []

    class Watched(CompiledRound):
        def verify(self, *arguments):
            events.append("verify")
            return super().verify(*arguments)

    stream = TokenStream(Watched(model, drafter), model.make_cache(), [5, 6, 7], max_tokens=24, depth=FixedDepth(2))
    for n, emitted in enumerate(stream):
        if n:  # the first token comes from prefill and waits for nothing
            events.append(emitted.speculation.rounds)
    rounds = stream.speculation.rounds
    for number in range(1, rounds):
        assert events[: events.index(number)].count("verify") == number + 1
    assert events.count("verify") == rounds
