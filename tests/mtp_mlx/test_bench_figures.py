"""Figures beside the headline: phases, energy, what a round reads, and reports as rows."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from mlx.utils import tree_flatten

from mtp_mlx.bench.instruments import AppleMeter, Phases, energy_meter, mean_phases
from mtp_mlx.bench.measure import Workload, measure, measure_depths
from mtp_mlx.bench.roofline import drafter_bytes, memory_bandwidth, target_bytes
from mtp_mlx.bench.rounds import over_time, shares_by_accepted
from mtp_mlx.bench.rows import rows
from mtp_mlx.bench.runner import Runner, Way
from mtp_mlx.bench.runs import RoundCounts, Run
from mtp_mlx.decoding.compiled import round_for
from tests import tiny

CONFIG = tiny.target_config("31b")
WORKS = [Workload("chat", "a", [5, 6, 7]), Workload("code", "b", [9, 8, 7, 6])]


@pytest.fixture(scope="module")
def model():
    return tiny.build_target(CONFIG)


@pytest.fixture(scope="module")
def drafter():
    return tiny.build_drafter(tiny.drafter_config(CONFIG, clustered=False))


def nbytes(module, part: str = "") -> int:
    return sum(array.nbytes for path, array in tree_flatten(module.parameters()) if part in path)


def test_phases_are_timed_in_runs_that_give_the_same_tokens(model, drafter):
    runner = Runner(model, {"": drafter}, 12)
    phases = runner.phases(WORKS[0].ids, Way("mtp", 2))
    assert min(phases.draft, phases.verify, phases.accept, phases.host) > 0
    assert phases.total == pytest.approx(phases.draft + phases.verify + phases.accept + phases.host)
    assert runner.phases(WORKS[0].ids, Way()).draft < phases.draft


def test_timing_phases_teaches_the_pair_nothing_about_depth(model, drafter):
    before = repr(round_for(model, drafter).depth())
    Runner(model, {"": drafter}, 40).phases(WORKS[0].ids, Way("mtp", "auto"))
    assert repr(round_for(model, drafter).depth()) == before


def test_mean_phases():
    assert mean_phases([Phases(1, 2, 3, 4), Phases(3, 4, 5, 6)]) == Phases(2, 3, 4, 5)


def test_without_a_package_that_reads_energy_there_is_none(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", None)
    assert energy_meter() is None
    report = measure(model, None, WORKS, num_tokens=4)
    assert report.energy is None and report.to_dict()["joules_per_token"] is None


def test_energy_is_what_the_machine_says_for_each_token(model, drafter, monkeypatch):
    class Monitor:
        def begin_window(self, label):
            self.label = label

        def end_window(self, label):
            assert label == self.label
            return SimpleNamespace(cpu_total_mj=1000, gpu_mj=7000, dram_mj=None, ane_mj=0)

    package = ModuleType("zeus_apple_silicon")
    package.AppleEnergyMonitor = Monitor
    monkeypatch.setitem(sys.modules, "zeus_apple_silicon", package)
    assert isinstance(energy_meter(), AppleMeter)
    report = measure(model, drafter, WORKS, num_tokens=4, num_draft_tokens=1)
    assert report.energy.plain == report.energy.mtp == 8 / (4 * 2)


def test_a_target_reads_its_weights_but_not_the_tables_it_only_looks_up(model):
    assert not model.config.tie_word_embeddings
    assert target_bytes(model) == nbytes(model) - nbytes(model, "embed_tokens")
    tied = tiny.build_target({**tiny.target_config("e2b"), "tie_word_embeddings": True})
    assert target_bytes(tied) == nbytes(tied) - nbytes(tied, "embed_tokens_per_layer")


def test_more_rows_choose_more_experts(model):
    moe = tiny.build_target(tiny.target_config("26b"))
    experts, rest = nbytes(moe, ".experts."), nbytes(moe) - nbytes(moe, ".experts.") - nbytes(moe, "embed_tokens")
    assert target_bytes(moe, 1) == pytest.approx(rest + experts / 4)
    assert target_bytes(moe, 2) == pytest.approx(rest + experts * (1 - 0.75**2))
    assert target_bytes(model, 2) == target_bytes(model, 1)


def test_a_clustered_head_reads_only_the_clusters_it_scores(drafter):
    assert drafter_bytes(drafter) == nbytes(drafter)
    clustered = tiny.build_drafter(tiny.drafter_config(CONFIG, clustered=True))
    rest = nbytes(clustered) - nbytes(clustered, "embed_tokens") - nbytes(clustered, "token_ordering")
    assert drafter_bytes(clustered) == rest + nbytes(clustered, "embed_tokens") * 4 / 16


def test_the_bandwidth_is_that_of_a_memory():
    assert 1e8 < memory_bandwidth() < 1e14


def test_what_rounds_did():
    early, late = RoundCounts(4, 0), RoundCounts(2, 2)
    runs = [Run([1], 1, 1, 0, rounds=[early] * 4 + [late] * 4), Run([1], 1, 1, 0, rounds=[early, late])]
    assert shares_by_accepted(runs) == [0.5, 0.0, 0.5]
    assert over_time(runs, 2) == [early, late]
    assert over_time([Run([1], 1, 1, 0, rounds=[early])], 4) == [early]
    assert shares_by_accepted([]) == over_time([]) == []


def test_rows_are_flat_and_have_the_same_keys(model, drafter):
    found = rows(measure_depths(model, drafter, WORKS, [1, 2], num_tokens=8))
    assert [(row["num_draft_tokens"], row["category"]) for row in found] == [
        *((1, name) for name in ("chat", "code", "all")),
        *((2, name) for name in ("chat", "code", "all")),
    ]
    assert len({tuple(row) for row in found}) == 1
    assert all(isinstance(value, str | int | float | None) for row in found for value in row.values())
    plain = rows([measure(model, None, WORKS, num_tokens=8)])
    assert tuple(plain[0]) == tuple(found[0]) and plain[0]["speed_up"] is None
