"""Measuring batches: what is counted, and that every row is compared."""

import json

import pytest

from mtp_mlx import MisuseError
from mtp_mlx.bench.batch import measure_batches, timed_batch
from mtp_mlx.bench.batch_report import BatchResult, BatchRun
from mtp_mlx.bench.measure import Workload
from mtp_mlx.speculation import Speculation
from tests.batches import drafter, target, truth

WORKLOADS = [Workload("random", f"{n} ids", list(truth("e2b", n).prompt)) for n in (4, 9, 20)]


def test_every_row_is_measured_and_is_what_its_prompt_gives_alone():
    seen = []
    report = measure_batches(
        target("e2b"),
        drafter("e2b"),
        WORKLOADS,
        [1, 2, 4],
        num_tokens=8,
        num_draft_tokens=2,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [len(prompt.ids) for prompt in report.prompts] == [4, 9, 20, 4]
    assert seen == [(n, 14) for n in range(15)]  # 4 + 2 + 1 groups, twice
    for result in report.results:
        assert len(result.plain) == len(result.mtp) == 4 // result.rows
        assert result.different == [False] * 4
        rows = [tokens for run in result.mtp for tokens in run.tokens]
        assert rows == [truth("e2b", len(prompt.ids)).tokens[:8] for prompt in report.prompts]
        assert len(result.acceptance) == 4
    whole = json.loads(json.dumps(report.to_dict()))
    assert [batch["rows"] for batch in whole["batches"]] == [1, 2, 4]
    assert whole["batches"][2]["speed_up"].keys() == {"aggregate", "whole", "sequence"}


def test_without_a_drafter_only_plain_decoding_is_measured():
    report = measure_batches(target("e2b"), None, WORKLOADS, [2], num_tokens=4)
    assert report.results[0].mtp == [] and report.results[0].to_dict()["speed_up"] is None


def test_the_aggregate_counts_what_is_emitted_while_all_rows_run():
    rounds = iter([[(0, 7)], [(0, 8), (1, 3)], [(0, 9), (1, 4), (1, 5)], [(0, 1)], [(1, 6), (1, 2)], []])
    run = timed_batch(lambda: next(rounds), rows=2)
    assert run.tokens == [[7, 8, 9, 1], [3, 4, 5, 6, 2]]
    assert run.full_tokens == 4  # of the third round and the fourth, with which row 0 ends
    assert run.first[0] < run.first[1] == pytest.approx(run.last[0] - run.full_seconds)


def test_rows_of_the_last_group_belong_to_the_first_prompts():
    run = BatchRun([[1, 2]] * 2, [0.1] * 2, [0.2] * 2, 2, 0.1, [Speculation(1, (1,), (1,)), Speculation(1, (1,), (0,))])
    result = BatchResult(2, 3, [], [run, run])
    assert result.acceptance == [0.5, 0.0, 1.0]  # the fourth row was the first prompt again


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"sizes": []}, "batch sizes must be between 1 and 64"),
        ({"sizes": [1, 65]}, "batch sizes must be between 1 and 64 .given: 65"),
        ({"num_tokens": 1}, "measure 2 tokens"),
        ({"workloads": []}, "there are no prompts"),
        ({"num_tokens": 5000}, "must fit into the model's context"),
    ],
)
def test_misuse(arguments, message):
    arguments = {"workloads": WORKLOADS, "sizes": [2], **arguments}
    with pytest.raises(MisuseError, match=message):
        measure_batches(target("e2b"), None, **arguments)
