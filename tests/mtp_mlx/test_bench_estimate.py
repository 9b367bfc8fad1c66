"""Estimates: every kind of layer is measured once, what is added up is the whole, and all sizes can be built."""

import pytest

from mtp_mlx.bench.estimate import parts, predict
from mtp_mlx.bench.estimate.parts import Part, drafter_part, target_parts, together
from mtp_mlx.bench.estimate.predict import Estimate, _between, estimate, expected_tokens
from mtp_mlx.bench.estimate.timing import Timer
from mtp_mlx.bench.machine import this_machine
from mtp_mlx.bench.spread import Spread
from mtp_mlx.models import registry
from mtp_mlx.models.gemma4_config import AssistantConfig, TextConfig
from mtp_weights.recipe import Recipe
from tests import tiny


def spread(value: float) -> Spread:
    return Spread(value, 0.9 * value, 1.2 * value)


@pytest.mark.parametrize("architecture", list(tiny.ARCHITECTURES))
def test_each_kind_of_layer_stands_for_all_of_its_kind(architecture, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", 1)  # one layer at a time
    config = registry.target_config(tiny.target_config(architecture))
    *layers, ends = target_parts(config, None, 30)
    assert sum(part.times for part in layers) == len(config.layers) and len(layers) == len(set(config.layers))
    assert ends.times == config.vocab_size / 64
    for part in (*layers, ends):
        for rows in (1, 3):
            first, *_ = part.run(rows)
            assert first.shape[:2] == (1, rows) and not parts.mx.isnan(first).any().item()


def test_as_many_layers_as_there_is_room_for():
    config = TextConfig.from_dict(tiny.target_config("31b"))
    sliding, full, _ = target_parts(config, None, 30)
    assert sliding.times == full.times == 1.0


def test_quantized_parts_are_smaller():
    config = TextConfig.from_dict(tiny.target_config("31b"))
    whole, small = (sum(p.nbytes for p in target_parts(config, recipe, 30)) for recipe in (None, Recipe.of(4)))
    assert small < whole / 3


@pytest.mark.parametrize("clustered", [True, False])
def test_a_drafter_without_its_target(clustered):
    config = tiny.target_config("31b")
    drafter = AssistantConfig.from_dict(tiny.drafter_config(config, clustered=clustered))
    part = drafter_part(drafter, TextConfig.from_dict(config), 30)
    assert [part.run(steps)[0].shape for steps in (1, 4)] == [(1, 1), (1, 4)]


def test_parts_are_added_up(monkeypatch):
    class Timer:
        def part(self, part: Part, counts, others):
            return {count: spread(part.times * (1 + 0.1 * (count - 1))) for count in counts}

    monkeypatch.setattr(predict, "Timer", Timer)
    monkeypatch.setattr(predict, "PART_BYTES", 0)
    config, calls = tiny.target_config("31b"), []
    drafter = tiny.drafter_config(config, clustered=False)
    found = estimate("x", config, drafter, progress=lambda *call: calls.append(call))
    assert found.plain_seconds.median == pytest.approx(3.0)  # two kinds of layers and the head
    assert found.round_seconds[2].median == pytest.approx(3.0 * 1.2 + 1.1)
    assert found.plain_tps == Spread(*(pytest.approx(1 / 3 / by) for by in (1, 1.2, 0.9)))
    assert calls == [(n, 4) for n in range(5)]
    assert estimate("x", config, None).round_seconds == {}


def test_a_small_target_is_measured_as_a_whole():
    config = TextConfig.from_dict(tiny.target_config("e2b"))
    single = list(target_parts(config, None, 30))
    whole = together(single)
    assert whole.times == 1 and {part.times for part in single} == {1.0}
    assert whole.nbytes == sum(part.nbytes for part in single)
    assert len(whole.run(2)) == sum(len(part.run(2)) for part in single)


def test_speed_up_by_acceptance():
    found = Estimate("x", "4-bit", 512, 0, this_machine(), spread(2.0), {3: spread(3.0)}, 0)
    assert found.cost(3) == 1.5
    assert found.speed_up(3, 1.0) == pytest.approx(4 / 1.5) and found.speed_up(3, 0.0) == pytest.approx(1 / 1.5)
    assert expected_tokens(2, 0.5) == 1.75


def test_between_two_measurements_times_lie_on_a_line():
    known = {1: spread(1.0), 3: spread(2.0), 9: spread(8.0)}
    assert _between(known, 2).median == pytest.approx(1.5)
    assert _between(known, 3).median == pytest.approx(2.0)


def test_what_waiting_takes_is_taken_off_but_never_everything():
    timer = Timer()
    timer.sync = 0.25
    assert timer._without_waiting(1.0) == 0.75 and timer._without_waiting(0.2) == 0.1


def test_quantized_parts_are_drawn_and_not_quantized():
    config = TextConfig.from_dict(tiny.target_config("26b"))
    for part in target_parts(config, Recipe.of(4), 30):
        first, *_ = part.run(2)
        assert first.shape[:2] == (1, 2) and not parts.mx.isnan(first).any().item()
