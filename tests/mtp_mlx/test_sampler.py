"""Samplers: every value of an option samples soundly, or is refused."""

import mlx.core as mx
import pytest

from mtp_mlx.decoding.sampling import log_softmax
from mtp_mlx.errors import MisuseError
from mtp_mlx.sampler import COLDEST, make_sampler

LOGPROBS = log_softmax(mx.array([[-20.0, 3.0, 2.9, -80.0, 0.0]]))


@pytest.mark.parametrize("temp", [0.0, 1e-320, 1e-40, 1e-30])
def test_as_good_as_greedy_is_greedy(temp):
    assert make_sampler(temp) is None


@pytest.mark.parametrize("temp", [COLDEST, 1e-4])
def test_near_zero_the_likeliest_is_drawn(temp):
    assert make_sampler(temp, seed=0)(mx.repeat(LOGPROBS, 50, axis=0)).tolist() == [1] * 50


@pytest.mark.parametrize("top_k", [5, 6, 10**9])
def test_the_whole_vocabulary_can_be_kept(top_k):
    rows = mx.repeat(LOGPROBS, 50, axis=0)
    assert make_sampler(1.0, top_k=top_k, seed=3)(rows).tolist() == make_sampler(1.0, seed=3)(rows).tolist()


def test_top_k_keeps_the_likeliest():
    assert set(make_sampler(5.0, top_k=2, seed=0)(mx.repeat(LOGPROBS, 200, axis=0)).tolist()) == {1, 2}


def test_the_largest_seed():
    assert make_sampler(1.0, seed=2**64 - 1)(LOGPROBS).shape == (1,)


@pytest.mark.parametrize("options", [{"temp": float("inf")}, {"seed": 2**64}, {"seed": 10**40}])
def test_values_that_cannot_be_computed_with(options):
    with pytest.raises(MisuseError, match="must be"):
        make_sampler(**options)
