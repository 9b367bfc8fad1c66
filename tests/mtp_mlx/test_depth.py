"""The depth policy on synthetic cost and acceptance curves."""

import random
from functools import partial

import pytest

from mtp_mlx.decoding.depth import AutoDepth, FixedDepth, depth_policy
from mtp_mlx.errors import MisuseError

PLAIN = 0.010  # seconds


def simulate(policy, acceptance, cost, tokens=1500, seed=0, noise=0.02, slots=1):
    """Decodes `tokens` in each slot with a simulated pair; (tokens a second in all, the depths of the rounds)."""
    rng = random.Random(seed)
    emitted, elapsed, verified, depths = 0.0, 0.0, 0, []
    while emitted < tokens:
        drafted = policy.choose()
        accepted = [accept(rng, verified, partial(acceptance, emitted=emitted)) for _ in range(slots)]
        seconds = cost(verified, drafted) * (1 + abs(rng.gauss(0, noise)))
        policy.observe(verified, accepted, drafted, seconds)
        emitted, elapsed = emitted + sum(accepted) / slots + 1, elapsed + seconds
        depths.append(verified)
        verified = drafted
    return slots * emitted / elapsed, depths


def accept(rng, verified, chance):
    return next((n for n in range(verified) if rng.random() >= chance(n)), verified)


def linear(verify, draft):
    """A round's cost when each verified row and each draft cost these shares of a plain step."""
    return lambda verified, drafted: PLAIN * (1 + verify * verified + draft * drafted)


def best_fixed(acceptance, cost):
    return max(simulate(FixedDepth(k), acceptance, cost)[0] for k in range(9))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("chance", [0.4, 0.6, 0.8, 0.95])
@pytest.mark.parametrize(("verify", "draft"), [(0.03, 0.03), (0.09, 0.08), (0.2, 0.1)])
def test_comes_close_to_the_best_fixed_depth(chance, verify, draft, seed):
    acceptance, cost = (lambda position, emitted: chance), linear(verify, draft)
    rate, _ = simulate(AutoDepth(), acceptance, cost, seed=seed)
    assert rate > 0.93 * best_fixed(acceptance, cost)


@pytest.mark.parametrize(("chance", "verify"), [(0.0, 0.09), (0.05, 0.09), (0.3, 0.45)])
def test_parks_at_zero_when_drafting_does_not_pay(chance, verify):
    """A drafter that is always wrong, and a mixture of experts where each verified row costs half a step."""
    pair = (lambda position, emitted: chance), linear(verify, 0.08)
    rate, depths = simulate(AutoDepth(), *pair, tokens=512)
    plain, _ = simulate(FixedDepth(0), *pair, tokens=512)
    assert rate > 0.97 * plain
    assert depths[-50:].count(0) >= 40


def test_looks_less_and_less_often_while_looking_changes_nothing():
    _, depths = simulate(AutoDepth(), lambda position, emitted: 0.0, linear(0.09, 0.08), tokens=2000)
    assert sum(d > 0 for d in depths[:500]) > sum(d > 0 for d in depths[-500:])


def test_comes_back_when_drafting_starts_to_pay():
    acceptance = lambda position, emitted: 0.0 if emitted < 600 else 0.9  # noqa: E731
    _, depths = simulate(AutoDepth(), acceptance, linear(0.05, 0.05), tokens=4000)
    assert sum(depths[-100:]) / 100 > 3


def test_goes_shallower_when_the_text_becomes_harder():
    acceptance = lambda position, emitted: 0.95 if emitted < 1500 else 0.3  # noqa: E731
    _, depths = simulate(AutoDepth(), acceptance, linear(0.09, 0.08), tokens=3000)
    assert sum(depths[150:200]) / 50 > 4
    assert sum(depths[-200:]) / 200 < 2


def test_one_slow_round_changes_little():
    policy = AutoDepth()
    simulate(policy, lambda position, emitted: 0.8, linear(0.05, 0.05))
    depth, before = policy.current, policy.seconds(policy.current)
    policy.observe(depth, [depth], depth, 300 * before)
    assert policy.seconds(depth) <= 1.3 * before


def always(chance):
    return lambda position, emitted: chance


@pytest.mark.parametrize("slots", [2, 4, 8])
@pytest.mark.parametrize("tokens", [24, 64, 256])
def test_many_slots_do_not_explore_what_one_knows_to_be_useless(slots, tokens):
    one = AutoDepth()
    simulate(one, always(0.02), linear(0.09, 0.08))
    pair = always(0.02), linear(0.2, 0.08)
    rate, depths = simulate(one.for_other_load(), *pair, tokens=tokens, slots=slots)
    plain, _ = simulate(FixedDepth(0), *pair, tokens=tokens, slots=slots)
    assert rate > 0.97 * plain and sum(depths) <= tokens / 20


@pytest.mark.parametrize("slots", [4, 8])
@pytest.mark.parametrize(("chance", "verify"), [(0.5, 0.1), (0.7, 0.2), (0.9, 0.1), (0.9, 0.4), (0.3, 0.45)])
def test_many_slots_find_a_depth_of_their_own(slots, chance, verify):
    """Shallower than one sequence does where rows cost more, and close to the best, in 200 tokens each."""
    one = AutoDepth()
    simulate(one, always(chance), linear(0.04, 0.04))
    cost = linear(verify, 0.08)
    rate, _ = simulate(one.for_other_load(), always(chance), cost, tokens=200, slots=slots)
    best = max(simulate(FixedDepth(k), always(chance), cost, tokens=200, slots=slots)[0] for k in range(9))
    plain, _ = simulate(FixedDepth(0), always(chance), cost, tokens=200, slots=slots)
    assert rate > 0.9 * best and rate > 0.97 * plain


def test_a_second_load_comes_back_to_drafting_too():
    one = AutoDepth()
    simulate(one, always(0.0), linear(0.09, 0.08), tokens=400)
    _, depths = simulate(one.for_other_load(), always(0.9), linear(0.1, 0.05), tokens=4000, slots=4)
    assert sum(depths[-100:]) / 100 > 3


def test_rounds_without_a_time_of_their_own_teach_acceptance_only():
    policy = AutoDepth()
    for _ in range(50):
        policy.observe(3, [0, 0], 3, None)
    assert policy.acceptance.at(0) < 0.05 and policy.choose() == 3
    policy.observe(3, [0], 3, 1.0)


def test_a_number_is_kept():
    policy = depth_policy(2, AutoDepth())
    policy.observe(2, [0], 2, 1.0)
    assert policy.choose() == 2


@pytest.mark.parametrize("bad", [-1, 17, "deep", 1.5])
def test_impossible_depths_are_refused(bad):
    with pytest.raises(MisuseError, match="between 0 and 16"):
        depth_policy(bad, AutoDepth())
