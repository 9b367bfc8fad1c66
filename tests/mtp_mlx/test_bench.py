"""The bench does what it says: as many tokens both ways, in alternating order, nothing compiled on the way."""

import json
import random

import pytest

from mtp_mlx import MisuseError, UserError, generate_step
from mtp_mlx.bench import measure as measuring
from mtp_mlx.bench.measure import Workload, measure
from mtp_mlx.bench.prompts import BenchPrompt, default_prompts, read_prompts, select
from mtp_mlx.bench.report import PromptResult, Run, Spread, Summary, repeated_share
from mtp_mlx.decoding.compiled import round_for
from mtp_mlx.decoding.depth import FixedDepth
from mtp_mlx.load import load_tokenizer
from mtp_mlx.sampler import make_sampler
from mtp_mlx.speculation import Speculation
from mtp_weights.locate import DEMO_TARGET, bundled_folder
from tests import tiny, tiny_tokenizer

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


def test_a_drafter_that_is_always_right(model):
    work = workload(8)
    drafter = tiny.ScriptedDrafter(work.ids + continuation(model, work.ids), False, CONFIG["vocab_size"])
    report = measure(model, drafter, [work], num_tokens=TOKENS, num_draft_tokens=3)
    assert report.overall.speculation.acceptance_rate == 1.0
    assert report.overall.speculation.rounds < TOKENS / 3


def test_nothing_is_compiled_in_a_run_that_counts(model, drafter, monkeypatch):
    seen = []
    original = measuring._Bench.timed

    def watched(self, compiled, *rest):
        before = compiled.traces
        run = original(self, compiled, *rest)
        seen.append((run, compiled.traces - before))
        return run

    monkeypatch.setattr(measuring._Bench, "timed", watched)
    # Buffers grow from 256 to 512 rows on the way: more shapes than the first prompt has met.
    report = measure(model, drafter, [workload(5), workload(250)], num_tokens=TOKENS, num_draft_tokens=2)
    counted = [run for result in report.results for run in result.plain + result.mtp]
    traced = {id(run): traces for run, traces in seen}
    assert [traced[id(run)] for run in counted] == [0] * 4
    assert sum(traces for _, traces in seen) > 0


def test_the_order_alternates(model, drafter, monkeypatch):
    order = []
    original = measuring._Bench.run

    def watched(self, ids, way):
        order.append(way)
        return original(self, ids, way)

    monkeypatch.setattr(measuring._Bench, "run", watched)
    measure(model, drafter, [workload(5), workload(9), workload(12)], num_tokens=8, num_draft_tokens=1, repeats=2)
    warm_up, first, second = order[:2], order[2:8], order[8:]
    assert warm_up == ["plain", "mtp"]
    assert first == ["plain", "mtp", "mtp", "plain", "plain", "mtp"]
    assert second == ["mtp", "plain", "plain", "mtp", "mtp", "plain"]


def test_progress_counts_every_run(model, drafter):
    calls = []
    measure(model, drafter, [workload(5), workload(9)], num_tokens=4, progress=lambda *call: calls.append(call))
    assert calls == [(n, 4) for n in range(5)]


def test_stop_ids_are_ignored(drafter):
    config = {**CONFIG, "eos_token_id": list(range(CONFIG["vocab_size"]))}
    report = measure(tiny.build_target(config), drafter, [workload(5)], num_tokens=9)
    assert len(report.results[0].plain[0].tokens) == len(report.results[0].mtp[0].tokens) == 9


def test_a_divergence_is_found_with_its_logit_gap(model, drafter):
    work = workload(7)
    bench = measuring._Bench(model, drafter, 2, TOKENS)
    tokens = continuation(model, work.ids)
    other = (tokens[4] + 1) % CONFIG["vocab_size"]
    wrong = Run([*tokens[:4], other, *tokens[5:]], 1.0, 1.0, 0)
    right = Run(tokens, 1.0, 1.0, 0)
    assert bench.compared(work, PromptResult("chat", "", 7, [right], [right])).divergence is None
    found = bench.compared(work, PromptResult("chat", "", 7, [right], [right, wrong])).divergence
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


def test_prompts_from_lines_and_from_json_lines(tmp_path):
    text = tmp_path / "mine.txt"
    text.write_text("first\n\n  \nsecond\u2028still second\n", "utf-8")
    assert read_prompts(text) == [BenchPrompt("mine", "first"), BenchPrompt("mine", "second\u2028still second")]
    lines = tmp_path / "mine.jsonl"
    entries = [{"prompt": "a"}, {"prompt": "b", "category": "x"}, {"prompt": "c", "domain": "y", "kind": "raw"}]
    lines.write_text("\n".join(json.dumps(entry) for entry in entries))
    assert read_prompts(lines) == [BenchPrompt("prompts", "a"), BenchPrompt("x", "b"), BenchPrompt("y", "c", True)]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.txt", b"\n\n", "the file has no prompts"),
        ("a.txt", b"caf\xe9", "prompts must be UTF-8 text .given: .*byte 3"),
        ("a.jsonl", b'{"prompt": "x"}\n{', "each line must be a JSON object .given: .*line 2"),
        ("a.jsonl", b"[]", "each line must be a JSON object with a 'prompt' text .given: .*line 1"),
        ("a.jsonl", b'{"prompt": 3}', "with a 'prompt' text"),
        ("a.jsonl", b'{"prompt": "x", "kind": "y"}', "the 'kind' of a prompt must be 'chat' or 'raw'"),
    ],
)
def test_bad_prompt_files(tmp_path, name, content, problem):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=problem):
        read_prompts(tmp_path / name)


def test_a_prompt_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="cannot read the prompts"):
        read_prompts(tmp_path / "none.txt")


def test_select_takes_evenly_from_each_category():
    prompts = [BenchPrompt("ab"[n % 2], str(n)) for n in range(20)]
    assert [prompt.text for prompt in select(prompts, 3)] == ["0", "6", "12", "1", "7", "13"]
    assert len(select(prompts, 99)) == 20


def test_the_package_s_prompts(model):
    prompts = default_prompts(model)
    categories = {prompt.category for prompt in prompts}
    assert categories == {"chat", "code", "prose", "structured"}
    assert all(sum(prompt.category == name for prompt in prompts) >= 6 for name in categories)
    assert len({prompt.text for prompt in prompts}) == len(prompts)


def test_the_demo_s_prompts_are_its_held_out_text(model, monkeypatch):
    monkeypatch.setattr(model, "path", bundled_folder(DEMO_TARGET))
    categories = {prompt.category for prompt in default_prompts(model)}
    assert categories == {"bible", "novels", "code", "chat"}


def test_raw_prompts_do_without_the_template(tmp_path):
    tokenizer = load_tokenizer(tiny_tokenizer.write_tokenizer(tmp_path), set())
    raw, templated = BenchPrompt("a", "hello", True).ids(tokenizer), BenchPrompt("a", "hello").ids(tokenizer)
    assert raw == tokenizer.encode("hello") and 105 in templated and 105 not in raw
