"""Compiled functions and adopted targets are kept while the weights last, and not longer."""

import gc
import weakref

import mlx.core as mx
from mlx_lm.models import gemma4_text

from mtp_mlx import as_target, generate_step
from mtp_mlx.decoding.compiled import round_for
from tests import tiny


def mlx_lm_model() -> gemma4_text.Model:
    return gemma4_text.Model(gemma4_text.ModelArgs.from_dict(tiny.target_config("e2b")))


def greedy(model, count: int = 6) -> list[int]:
    return [token for token, _, _ in generate_step([3, 4, 5], model, max_tokens=count)]


def test_a_pair_is_compiled_once():
    model = tiny.build_target(tiny.target_config("e2b"))
    greedy(model)
    round = round_for(model, None)
    traces = round.traces
    greedy(model)
    assert round_for(model, None) is round
    assert round.traces == traces > 0


def test_other_weights_are_compiled_again():
    model = tiny.build_target(tiny.target_config("e2b"))
    before = greedy(model)
    model.load_weights(list(tiny.random_weights(model, seed=7).items()))
    fresh = tiny.build_target(tiny.target_config("e2b"), seed=7)
    assert greedy(model) == greedy(fresh) != before


def test_a_model_of_mlx_lm_is_adopted_once_and_again_when_its_weights_change():
    model = mlx_lm_model()
    target = as_target(model)
    assert as_target(model) is target
    model.model.norm.weight = mx.ones_like(model.model.norm.weight) * 2
    assert as_target(model) is not target
    assert as_target(model).model.norm.weight is model.model.norm.weight


def test_nothing_outlives_its_model():
    model = tiny.build_target(tiny.target_config("e2b"))
    adopted = mlx_lm_model()
    greedy(model), greedy(adopted)
    watched = weakref.ref(model), weakref.ref(as_target(adopted))
    del model, adopted
    gc.collect()
    assert [ref() for ref in watched] == [None, None]
