"""A wrongly wired drafter still works, only worse; so each wire, when crossed, must show in the logits.

The right wiring equals transformers' within the tolerance (test_parity.py); each wrong one is a thousand times off.
"""

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mtp_mlx import draft_tokens
from mtp_mlx.decoding.depth import FixedDepth
from mtp_mlx.decoding.prefill import prefill
from mtp_mlx.decoding.round import Round
from mtp_mlx.decoding.stream import TokenStream
from mtp_mlx.errors import MisuseError
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.config import FULL, SLIDING
from mtp_mlx.models.drafter import Drafter
from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.steps import DraftStep
from tests.reference.cases import HEADS, TOLERANCE, Case, case, gap
from tests.reference.names import WITH_GOLDENS
from tests.tiny import GEMMA4, ScriptedDrafter, build_target, target_config

VISIBLE = 1000 * TOLERANCE


class FirstRound:
    """The first draft steps after the golden's longest prompt, open to rewiring."""

    def __init__(self, case: Case, head: str):
        self.target, self.drafter = build_target(target_config(case.name)), case.drafter(head)
        self.golden = case.golden[f"{head}.logits"][-1]
        self.tokens = case.golden[f"{head}.tokens"][-1][:, None, None]
        self.ids = mx.array([case.ids])
        self.cache = self.target.make_cache()
        self.hidden = self.target.model(self.ids, self.cache)[:, -1:]
        self.step = DraftStep(self.cache)

    def worst(self) -> float:
        """Largest difference of the logits to transformers' over all steps."""
        hidden, gaps = self.hidden, []
        for token, golden in zip(self.tokens[:-1], self.golden, strict=True):
            h, hidden = self.drafter.step(self.target, token, hidden, self.step)
            gaps.append(gap(self.drafter.logits(h)[0, 0], golden))
        return max(gaps)


@pytest.fixture(params=GEMMA4)
def wired(request: pytest.FixtureRequest) -> Callable[[str], FirstRound]:
    return lambda head="full": FirstRound(case(request.param), head)


@pytest.mark.parametrize("head", HEADS)
def test_right_wiring(wired, head):
    assert wired(head).worst() < TOLERANCE


def test_another_layers_keys_and_values(wired):
    for kind in (SLIDING, FULL):
        round = wired()
        *others, shared = (layer for layer in round.cache if layer.layer.layer_type == kind)
        assert shared is round.cache.shared(kind)
        for other in others[-1:]:
            round.step.kv[kind] = tuple(other.state)
            assert round.worst() > VISIBLE


def test_keys_and_values_swapped(wired):
    round = wired()
    round.step.kv[FULL] = round.step.kv[FULL][::-1]
    assert round.worst() > VISIBLE


def test_embedding_not_scaled(wired):
    round = wired()
    embedding = round.target.model.embed_tokens
    embedding.weight = embedding.weight * round.target.config.hidden_size**-0.5
    assert round.worst() > VISIBLE


def test_embedding_of_the_drafter_instead_of_the_targets(wired):
    round = wired()
    round.target.model.embed_tokens = round.drafter.model.embed_tokens
    assert round.worst() > VISIBLE


def test_hidden_state_before_embedding(wired):
    round = wired()
    first, second = mx.split(round.drafter.pre_projection.weight, 2, axis=1)
    round.drafter.pre_projection.weight = mx.concatenate([second, first], axis=1)
    assert round.worst() > VISIBLE


def test_hidden_state_before_the_final_norm(wired):
    round = wired()
    round.target.model.norm = nn.Identity()
    round.hidden = round.target.model(round.ids)[:, -1:]
    assert round.worst() > VISIBLE


def test_hidden_state_of_the_position_before(wired):
    round = wired()
    round.hidden = round.target.model(round.ids)[:, -2:-1]
    assert round.worst() > VISIBLE


def test_hidden_state_of_the_target_in_every_step(wired):
    round = wired()
    round.drafter.post_projection = Constant(round.hidden)
    assert round.worst() > VISIBLE


def test_position_of_the_last_cached_token(wired):
    round = wired()
    round.step = DraftStep(round.cache, "last_cached")
    assert round.worst() > VISIBLE


def test_position_that_moves_on_with_the_drafts(wired):
    round = wired()
    advance = round.drafter.step

    def step(*args):
        result = advance(*args)
        round.step.offset = round.step.offset + 1
        return result

    round.drafter.step = step
    assert round.worst() > VISIBLE


@pytest.mark.parametrize("extra", [-1, 1])
def test_window_one_key_too_short_or_too_long(wired, extra):
    round = wired()
    seen = round.step.masks[SLIDING][0, 0, 0]
    assert seen.sum().item() == round.target.config.sliding_window + 1  # inclusive, as transformers'
    oldest = round.cache.offset - 1 - round.target.config.sliding_window - max(extra, 0)
    round.step.masks[SLIDING][..., oldest % seen.size] = extra > 0
    assert round.worst() > VISIBLE


def test_draft_position_is_the_drafters_choice():
    round = FirstRound(case("e2b"), "full")
    token = round.tokens[0]
    drafts = {}
    for position in ("next", "last_cached"):
        round.drafter.draft_position = position
        drafts[position] = round.drafter.draft(round.target, round.cache, token, round.hidden, 5).tolist()
    assert drafts["next"] == [round.tokens[1:].flatten().tolist()]
    assert drafts["last_cached"] != drafts["next"]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", WITH_GOLDENS)
def test_drafts_of_every_round_are_those_of_a_first_round(name, head):
    """Rejected rows, wrapped rings and what was drafted before must leave no trace in what the drafter sees."""
    target, prompt, drafter = case(name).target, case(name).ids[:20], case(name).drafter(head)
    text = prompt + case(name).golden["greedy"].tolist()
    spy = Spy(drafter, ScriptedDrafter(text, np.random.RandomState(0).rand(len(text)) < 0.3, 128))
    stream = TokenStream(Round(target, spy), target.make_cache(), prompt, max_tokens=56, depth=FixedDepth(4))
    assert [emitted.token for emitted in stream] == text[20:76]
    accepted = stream.speculation.accepted_by_position
    assert stream.speculation.rounds > accepted[0] > accepted[-1] > 0
    for length, token, drafts in spy.seen:
        cold = target.make_cache()
        hidden = prefill(target, mx.array([text[:length]]), cold)
        assert token.item() == text[length]
        assert mx.array_equal(drafts, drafter.draft(target, cold, token, hidden, drafts.shape[1]))


class Spy(Drafter):
    """Proposes what `script` does, and notes what `drafter` would have: (cached tokens, last token, drafts)."""

    def __init__(self, drafter: Gemma4Assistant, script: ScriptedDrafter):
        super().__init__()
        self.drafter, self.script, self.seen = drafter, script, []

    def draft(self, target: Gemma4, cache: KVCache, token: mx.array, *rest) -> mx.array:
        self.seen.append((cache.lengths.item(), token, self.drafter.draft(target, cache, token, *rest)))
        return self.script.draft(target, cache, token, *rest)


class Constant(nn.Module):
    """Gives the same output for every input."""

    def __init__(self, value: mx.array):
        super().__init__()
        self.value = value

    def __call__(self, _: mx.array) -> mx.array:
        return self.value


def test_a_changed_draft_position_counts_at_once():
    """Compiled rounds are kept with the model, and a trace captures where the drafter stands."""
    round = FirstRound(case("e2b"), "full")
    prompt = case("e2b").ids
    drafts = {}
    for position in ("next", "last_cached", "next"):
        round.drafter.draft_position = position
        fresh = case("e2b").drafter("full", position)
        drafts[position] = draft_tokens(round.target, round.drafter, prompt, 5)
        assert drafts[position] == draft_tokens(round.target, fresh, prompt, 5)
    assert drafts["last_cached"] != drafts["next"]


def test_an_unknown_draft_position_is_refused():
    with pytest.raises(MisuseError, match="draft_position must be one of next, last_cached"):
        case("e2b").drafter("full", "newest")
