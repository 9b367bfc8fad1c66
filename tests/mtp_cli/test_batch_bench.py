"""Transcripts of `mtp bench -b`."""

import json
import re

import pytest

from tests.mtp_cli.conftest import error_line, mtp

QUICK = ("--limit", "1", "--num-tokens", "8", "--num-draft-tokens", "2", "-b", "2,1")


def test_the_table_has_a_line_for_each_batch_size(pair):
    result = mtp("bench", *pair.options, *QUICK)
    assert result.exit_code == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[1].split() == [
        "rows",
        "tok/s",
        "a",
        "row",
        "tok/s",
        "a",
        "row",
        "speed-up",
        "its",
        "end",
        "one",
        "row",
        "differ",
    ]
    rows = [re.sub(r"\d+\.\d+", "N", line).split() for line in lines[2:4]]
    assert rows == [[str(n), "N", "N", "N", "N", "N×", "N×", "N×", "0"] for n in (1, 2)]
    assert len([line for line in lines if line.startswith("accepted ")]) == 2
    assert "output    each row beside plain decoding of its prompt alone" in lines
    assert max(map(len, lines)) <= 120


def test_json_has_every_run(pair):
    report = json.loads(mtp("bench", *pair.options, *QUICK, "--json").stdout)
    assert [(batch["rows"], len(batch["runs"]["mtp"])) for batch in report["batches"]] == [(1, 2), (2, 1)]
    assert all(
        len(tokens) == 8 for batch in report["batches"] for run in batch["runs"]["plain"] for tokens in run["tokens"]
    )


def test_without_a_drafter(pair):
    lines = mtp("bench", "--model", pair.target, *QUICK[:4], "-b", "2", "--no-draft").stdout.splitlines()
    assert lines[2].split()[3:] == ["–"] * 5 + ["0"]
    assert not any(line.startswith(("accepted", "drafts")) for line in lines)


@pytest.mark.parametrize("sizes", ["", "0", "1,x", "65", "-1", "1,,2", "²"])
def test_impossible_sizes(sizes):
    line = error_line(mtp("bench", f"--batch-sizes={sizes}"), code=2)
    assert "--batch-sizes must be numbers between 1 and 64" in line and sizes in line


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--lenient", "--batch-sizes does not go with --lenient; leave one out"),
        ("--stop-at-eos", "--batch-sizes does not go with --stop-at-eos; leave one out"),
        (
            "--exact",
            "--exact is of one sequence: in a batch, how a row is rounded depends on how many others there are",
        ),
    ],
)
def test_what_does_not_go_together(option, line):
    assert error_line(mtp("bench", "-b", "2", option), code=2).startswith(line)
