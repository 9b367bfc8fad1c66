"""The bench does what it says: as many tokens both ways, in alternating order, nothing compiled on the way."""

import json
import random

import numpy as np
import pytest

from mtp_mlx import MisuseError, UserError, generate_step
from mtp_mlx.bench import runner
from mtp_mlx.bench.instruments import TimedRound
from mtp_mlx.bench.measure import Workload, measure, measure_depths, measure_drafters
from mtp_mlx.bench.outputs import first_divergence
from mtp_mlx.bench.runner import Runner
from mtp_mlx.bench.runs import PromptResult, RoundCounts, Run, repeated_share
from mtp_mlx.bench.spread import Interval, Spread, paired_interval
from mtp_mlx.bench.summary import Summary
from mtp_mlx.decoding.compiled import round_for
from mtp_mlx.decoding.depth import FixedDepth
from mtp_mlx.models.standalone import StandaloneDrafter
from mtp_mlx.sampler import make_sampler
from mtp_mlx.speculation import Speculation
from tests import tiny

CONFIG = tiny.target_config("31b")
TOKENS = 24


@pytest.fixture(scope="module")
def model():
    return tiny.build_target(CONFIG)


@pytest.fixture(scope="module")
def drafter():
    return tiny.build_drafter(tiny.drafter_config(CONFIG, clustered=False))


def workload(length: int, category: str = "chat", seed: int = 0) -> Workload:
    rng = random.Random(f"{length}/{seed}")
    return Workload(category, f"{length} tokens", [rng.randrange(CONFIG["vocab_size"]) for _ in range(length)])


def continuation(model, ids: list[int], count: int = TOKENS) -> list[int]:
    return [token for token, *_ in generate_step(ids, model, max_tokens=count)]


def test_both_ways_give_the_target_s_tokens_and_all_figures(model, drafter):
    works = [workload(5), workload(30, "code"), workload(9)]
    report = measure(model, drafter, works, num_tokens=TOKENS, repeats=2, num_draft_tokens=2)
    for work, result in zip(works, report.results, strict=True):
        assert (result.category, result.prompt_tokens) == (work.category, len(work.ids))
        assert [run.tokens for run in result.plain + result.mtp] == [continuation(model, work.ids)] * 4
    assert report.diverged == []
    assert [(summary.category, summary.prompts) for summary in report.categories] == [("chat", 2), ("code", 1)]
    speculation = report.overall.speculation
    assert len(speculation.acceptance_by_position) == 2
    assert speculation.rounds + speculation.accepted == 2 * len(works) * (TOKENS - 1)
    memory = report.memory
    assert memory.plain_peak > memory.target > memory.drafter > 0 and memory.key_values > 0
    assert report.prefill_tps.median > 0


def test_runs_end_as_replies_do_where_they_are_asked_to(model, drafter):
    works = [workload(5), workload(9)]
    whole = [continuation(model, work.ids) for work in works]
    stop = whole[0][6]
    assert stop not in whole[0][:6] + whole[1][:1]
    report = measure(model, drafter, works, num_tokens=TOKENS, num_draft_tokens=3, stop_ids={stop})
    assert report.stops and report.diverged == []
    for result, tokens in zip(report.results, whole, strict=True):
        expected = tokens[: tokens.index(stop) + 1] if stop in tokens else tokens
        assert [run.tokens for run in result.plain + result.mtp] == [expected] * 2
    assert len(report.results[0].plain[0].tokens) == 7


def test_a_reply_of_one_token_cannot_be_timed(model):
    work = workload(5)
    with pytest.raises(UserError, match="ends at its first token"):
        measure(model, None, [work], num_tokens=TOKENS, stop_ids={continuation(model, work.ids, 1)[0]})


def test_a_drafter_that_is_always_right(model):
    work = workload(8)
    drafter = tiny.ScriptedDrafter(work.ids + continuation(model, work.ids), False, CONFIG["vocab_size"])
    report = measure(model, drafter, [work], num_tokens=TOKENS, num_draft_tokens=3)
    assert report.overall.speculation.acceptance_rate == 1.0
    assert report.overall.speculation.rounds < TOKENS / 3


def test_nothing_is_compiled_in_a_run_that_counts(model, drafter, monkeypatch):
    seen = []
    original = Runner.timed

    def watched(self, round, *rest):
        if isinstance(round, TimedRound):
            return original(self, round, *rest)
        before = round.traces
        run = original(self, round, *rest)
        seen.append((run, round.traces - before))
        return run

    monkeypatch.setattr(Runner, "timed", watched)
    # Buffers grow from 256 to 512 rows on the way: more shapes than the first prompt has met.
    report = measure(model, drafter, [workload(5), workload(250)], num_tokens=TOKENS, num_draft_tokens=2)
    counted = [run for result in report.results for run in result.plain + result.mtp]
    traced = {id(run): traces for run, traces in seen}
    assert [traced[id(run)] for run in counted] == [0] * 4
    assert sum(traces for _, traces in seen) > 0


def test_prompts_and_ways_come_in_an_order_drawn_by_lot_that_is_the_same_each_time(model, drafter, monkeypatch):
    works, orders = [workload(5), workload(9), workload(12)], []
    original = Runner.run

    def watched(self, ids, way):
        orders[-1].append((len(ids), way.rule))
        return original(self, ids, way)

    monkeypatch.setattr(Runner, "run", watched)
    for _ in range(2):
        orders.append([])
        measure(model, drafter, works, num_tokens=8, num_draft_tokens=1, repeats=4)
    warm_up, turns = orders[0][:2], [orders[0][2 + 6 * n : 8 + 6 * n] for n in range(4)]
    assert warm_up == [(5, "plain"), (5, "mtp")]
    for turn in turns:
        assert sorted(turn) == sorted((len(work.ids), way) for work in works for way in ("plain", "mtp"))
        assert all(turn[n][0] == turn[n + 1][0] for n in (0, 2, 4))  # the ways of a prompt right after each other
    assert len({tuple(turn) for turn in turns}) > 1
    assert all({turn[0][1], turn[2][1]} == {"plain", "mtp"} for turn in turns)  # each comes first as often
    assert orders[0] == orders[1]


def test_each_run_rests_first(model, monkeypatch):
    rests = []
    monkeypatch.setattr(runner.time, "sleep", rests.append)
    measure(model, None, [workload(5)], num_tokens=4, delay=1.5)
    assert len(rests) >= 2 and set(rests) == {1.5}


def test_several_depths_share_the_plain_runs(model, drafter):
    reports = measure_depths(model, drafter, [workload(5), workload(9)], [0, 1, 3], num_tokens=TOKENS)
    assert [report.num_draft_tokens for report in reports] == [0, 1, 3]
    assert all(report.results[1].plain is reports[0].results[1].plain for report in reports)
    assert [len(report.overall.speculation.acceptance_by_position) for report in reports] == [0, 1, 3]
    tokens = {tuple(run.tokens) for report in reports for run in (report.results[0].plain + report.results[0].mtp)}
    assert len(tokens) == 1


def test_several_drafters_share_the_plain_runs(model, drafter):
    work = workload(8)
    right = tiny.ScriptedDrafter(work.ids + continuation(model, work.ids), False, CONFIG["vocab_size"])
    alone = StandaloneDrafter(tiny.build_target(CONFIG))
    drafters = {"random": drafter, "right": right, "alone": alone}
    reports = measure_drafters(model, drafters, [work], [2], num_tokens=TOKENS)
    assert [report.drafter for report in reports] == list(drafters)
    assert all(report.results[0].plain is reports[0].results[0].plain for report in reports)
    assert [report.overall.speculation.acceptance_rate == 1 for report in reports] == [False, True, True]
    memory = {report.drafter: report.memory for report in reports}
    assert memory["alone"].key_values > memory["right"].key_values == memory["random"].key_values
    assert not any(report.diverged for report in reports)


def test_rounds_are_told_one_by_one(model):
    work = workload(8)
    drafter = tiny.ScriptedDrafter(work.ids + continuation(model, work.ids), False, CONFIG["vocab_size"])
    report = measure(model, drafter, [work], num_tokens=12, num_draft_tokens=3)
    assert report.mtp_runs[0].rounds == [RoundCounts(3, 3), RoundCounts(3, 3), RoundCounts(2, 2)]
    assert report.results[0].plain[0].rounds == [RoundCounts(0, 0)] * 11
    data = report.to_dict()
    assert data["rounds_by_accepted"] == pytest.approx([0, 0, 1 / 3, 2 / 3])
    assert data["rounds_over_time"][-1] == {"drafted": 2, "accepted": 2}


def test_progress_counts_every_run(model, drafter):
    calls = []
    measure(model, drafter, [workload(5), workload(9)], num_tokens=4, progress=lambda *call: calls.append(call))
    phases = 1  # in a run of their own on the first prompt of the one category
    assert calls == [(n, 4 + phases) for n in range(5 + phases)]


def test_stop_ids_are_ignored(drafter):
    config = {**CONFIG, "eos_token_id": list(range(CONFIG["vocab_size"]))}
    report = measure(tiny.build_target(config), drafter, [workload(5)], num_tokens=9)
    assert len(report.results[0].plain[0].tokens) == len(report.results[0].mtp[0].tokens) == 9


def test_a_divergence_is_found_with_its_logit_gap(model):
    work = workload(7)
    tokens = continuation(model, work.ids)
    other = (tokens[4] + 1) % CONFIG["vocab_size"]
    wrong = Run([*tokens[:4], other, *tokens[5:]], 1.0, 1.0, 0)
    right = Run(tokens, 1.0, 1.0, 0)
    assert first_divergence(model, work.ids, right, [right]) is None
    found = first_divergence(model, work.ids, right, [right, wrong])
    assert (found.index, found.plain, found.mtp) == (4, tokens[4], other)
    logits = model(tiny.mx.array([work.ids + tokens[:4]]))[0, -1]
    assert found.logit_gap == pytest.approx((logits[tokens[4]] - logits[other]).item(), abs=1e-3)
    assert found.logit_gap > 0


def test_without_a_drafter_only_plain_decoding_is_measured(model):
    report = measure(model, None, [workload(5)], num_tokens=8)
    assert report.results[0].mtp == [] and len(report.results[0].plain) == 1
    assert report.overall.speed_up is None and report.memory.mtp_peak is None
    assert report.to_dict()["prompts"][0]["speed_up"] is None


def test_auto_depth_may_find_that_drafting_does_not_pay(model):
    drafter = tiny.build_drafter(tiny.drafter_config(CONFIG, clustered=False))
    compiled = round_for(model, drafter)
    compiled.depths[1] = FixedDepth(2)

    def stop_drafting(done: int, total: int) -> None:
        compiled.depths[1].drafts = 0

    report = measure(model, drafter, [workload(5)], num_tokens=TOKENS, progress=stop_drafting)
    assert report.overall.speculation.drafted == 0


def test_nothing_drafted_is_an_error_unless_that_was_asked_for(model, drafter):
    with pytest.raises(UserError, match="nothing was drafted"):
        measure(model, drafter, [workload(5)], num_tokens=2, num_draft_tokens=3)
    report = measure(model, drafter, [workload(5)], num_tokens=4, num_draft_tokens=0)
    assert report.overall.speculation.drafted == 0


@pytest.mark.parametrize("seed", [None, 5])
def test_sampled_speed_compares_outputs_only_with_a_seed(model, drafter, seed):
    sampler = make_sampler(1.0, seed=seed)
    report = measure(model, drafter, [workload(5)], num_tokens=TOKENS, num_draft_tokens=2, sampler=sampler)
    plain, mtp = report.results[0].plain[0], report.results[0].mtp[0]
    assert (plain.tokens == mtp.tokens) == report.to_dict()["outputs_compared"] == (seed is not None)
    assert report.diverged == [] and mtp.speculation.drafted > 0


def test_the_lenient_rule_is_measured_beside_the_lossless_one(model, drafter):
    hot = make_sampler(20.0, seed=1)  # nearly every token is plausible
    report = measure(model, drafter, [workload(5)], num_tokens=TOKENS, num_draft_tokens=2, sampler=hot, lenient=True)
    result = report.results[0]
    assert result.plain[0].tokens == result.mtp[0].tokens and report.diverged == []
    lenient, departure = result.lenient[0], report.overall.departure
    logits = model(tiny.mx.array([workload(5).ids + lenient.tokens[:-1]]))[0, 4:]
    choices = logits.argmax(-1).tolist()
    other = [d and t != c for d, t, c in zip(lenient.from_draft, lenient.tokens, choices, strict=True)]
    assert departure.share == pytest.approx(sum(other) / TOKENS) and departure.share > 0
    assert departure.kl > 0 and report.overall.lenient_speed_up.median > 0


def test_misuse(model, drafter):
    with pytest.raises(MisuseError, match="2 at least"):
        measure(model, drafter, [workload(5)], num_tokens=1)
    with pytest.raises(MisuseError, match="repeats"):
        measure(model, drafter, [workload(5)], repeats=0)
    with pytest.raises(MisuseError, match="no prompts"):
        measure(model, drafter, [])
    with pytest.raises(MisuseError, match="context of 4096 tokens .given: 4000 . 100 tokens, '4000 tokens'"):
        measure(model, drafter, [workload(4000)], num_tokens=100)
    with pytest.raises(MisuseError, match="number of draft tokens"):
        measure(model, drafter, [workload(5)], num_draft_tokens=99)


def test_the_report_as_a_dict_is_json_and_complete(model, drafter):
    report = measure(model, drafter, [workload(5), workload(6, "code")], num_tokens=8, num_draft_tokens=1)
    data = json.loads(json.dumps(report.to_dict()))
    assert data["num_tokens"] == 8 and data["stop_ids"] == "ignored" and data["num_draft_tokens"] == 1
    assert data["machine"]["mlx"] and data["machine"]["blas"] and data["machine"]["device"] in ("cpu", "gpu")
    assert data["overall"]["speed_up"].keys() == {"median", "lower", "upper"}
    assert data["overall"]["speculation"]["mean_acceptance_length"] >= 1
    assert [entry["category"] for entry in data["categories"]] == ["chat", "code"]
    assert len(data["prompts"][1]["runs"]["mtp"][0]["tokens"]) == 8


def run(decode_seconds: float, tokens: int = 11, **fields) -> Run:
    return Run(list(range(tokens)), 0.5, decode_seconds, 0, **fields)


def test_speed_ups_are_paired_and_medians_over_prompts():
    results = [
        PromptResult("a", "", 3, [run(4.0), run(2.0), run(2.5)], [run(1.25)]),
        PromptResult("a", "", 3, [run(10.0)], [run(2.0)]),
        PromptResult("a", "", 3, [run(1.0)], [run(1.0, speculation=Speculation(4, (4,), (3,)))]),
    ]
    assert results[0].plain_tps == 4.0 and results[0].speed_up == 2.0
    summary = Summary.of("a", results)
    assert summary.speed_up == Spread(2.0, 1.5, 3.5)
    assert summary.plain_tps.median == 4.0 and summary.mtp_tps.median == 8.0
    assert summary.speculation == Speculation(4, (4,), (3,))


def test_spread_of_few_values():
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0)
    assert Spread.of([1.0, 2.0]) == Spread(1.5, 1.25, 1.75)


def test_share_of_repeated_8_grams():
    assert repeated_share(list(range(50))) == 0.0
    assert repeated_share([1, 2] * 10) == pytest.approx(11 / 13)
    assert repeated_share([1] * 7) == 0.0


def test_an_interval_is_as_wide_as_prompts_differ_and_repeatable():
    alike, apart = [[2.0], [2.0], [2.0], [2.0]], [[1.0], [2.0], [3.0], [4.0]]
    ones = [[1.0]] * 4
    assert paired_interval(alike, ones) == Interval(2.0, 2.0)
    found = paired_interval(apart, ones)
    assert 1.0 <= found.lower < 2.5 < found.upper <= 4.0 and 2.5 in found
    assert found == paired_interval(apart, ones)
    assert paired_interval([[2.0]], [[1.0]]) is None


def test_an_interval_of_one_prompt_comes_from_its_runs():
    assert paired_interval([[2.0, 2.2, 2.4]], [[1.0, 1.0, 1.0]]) == Interval(2.0, 2.4)


def test_an_interval_holds_the_truth_as_often_as_it_says():
    random = np.random.default_rng(1)
    found = [paired_interval(random.lognormal(0.7, 0.2, (15, 1)), np.ones((15, 1))) for _ in range(60)]
    assert sum(np.exp(0.7) in interval for interval in found) >= 50
