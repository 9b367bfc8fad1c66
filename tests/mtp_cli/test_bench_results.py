"""Whole transcripts of what `mtp bench` does with results: the page, a comparison; and of an estimate."""

import json
import re
from pathlib import Path

import pytest

from tests.mtp_cli.conftest import error_line, mtp
from tests.mtp_cli.test_bench import QUICK, SHORT, shape

COMPARED = """\
N drafts a round, N tokens a run, N prompts that both have
A B B ÷ A N % CI verdict
first token, s
plain, tok/s
MTP, tok/s
speed-up
tokens a round
"""
ESTIMATE = """\
NAME, N-bit, random weights, after N tokens
plain decoding: N tok/s (N–N)

drafts round, speed-up at speed-up at speed-up at speed-up at speed-up at
a round plain steps N% N% N% N% N%
N N N× N× N× N× N×
N N N× N× N× N× N×
N N N× N× N× N× N×
N N N× N× N× N× N×
N N N× N× N× N× N×
N N N× N× N× N× N×

n %: the chance that a draft is accepted when those before it were
weights: N GB, at most N GB of them at a time here
"""


def test_the_page_is_written_beside_the_table(pair, tmp_path):
    file = tmp_path / "bench.html"
    result = mtp("bench", *pair.options, *SHORT, "--num-draft-tokens", "1,2", "--report", str(file))
    assert result.exit_code == 0 and result.stderr == f"report: {file}\n"
    lines, page = result.stdout.splitlines(), file.read_text("utf-8")
    assert lines[0].split() == ["tokens", "plain", "MTP", "95", "%", "tokens", "repeated"]
    assert page.startswith("<!DOCTYPE html>") and page.count("<svg") == 4
    said = re.search(r"\. (MTP .*)$", lines[5])[1]
    assert f'<p class="verdict">{said}</p>' in page
    for name in (
        "chat",
        "code",
        "By depth",
        " drafts a round, 12 tokens a run</h2>",
        "All 2 prompts",
        "protocol",
        "greedy, 12 tokens a run",
        "equal to plain",
    ):
        assert name in page


def test_a_page_of_plain_decoding_alone(pair, tmp_path):
    file = tmp_path / "bench.html"
    result = mtp("bench", "--model", pair.target, "--no-draft", *SHORT, "--report", str(file), "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["overall"]["speed_up"] is None
    assert "<svg" not in file.read_text("utf-8") and "tokens a second" in file.read_text("utf-8")


def test_a_page_that_could_not_be_written_is_told_before_anything_is_measured(tmp_path):
    for file in (tmp_path, tmp_path / "nowhere" / "bench.html"):
        line = error_line(mtp("bench", "--model", "nowhere", "--report", str(file)), 1)
        assert line == f"--report must name a file in a folder that exists (given: {file})"


@pytest.fixture(scope="module")
def results(pair, tmp_path_factory) -> list[Path]:
    files = [tmp_path_factory.mktemp("results") / name for name in ("a.json", "b.json")]
    for file in files:
        file.write_text(mtp("bench", *pair.options, *QUICK, "--json").stdout)
    return files


def test_a_comparison(results):
    result = mtp("bench", "compare", *map(str, results))
    assert result.exit_code == 0 and result.stderr == ""
    lines = [
        re.sub(r"( N(e[-+]N)?){2} N× N–N (more|less|within noise)$", "", line)
        for line in shape(result.stdout.splitlines())
    ]
    assert lines == [*COMPARED.splitlines(), ""]
    (found,) = json.loads(mtp("bench", "compare", *map(str, results), "--json").stdout)
    assert [change["name"] for change in found["changes"]] == COMPARED.splitlines()[2:]
    assert found["changes"][-1]["ratio"] == 1.0 and not found["changes"][-1]["more_than_noise"]


def test_what_was_not_the_same_is_named(results, tmp_path):
    other = json.loads(results[0].read_text())
    other["model"] = "another"
    file = tmp_path / "other.json"
    file.write_text(json.dumps(other))
    lines = mtp("bench", "compare", str(file), str(results[0])).stdout.splitlines()
    assert lines[1].startswith("not the same: model: another → ")


def test_what_cannot_be_compared(results, tmp_path):
    missing = tmp_path / "missing.json"
    line = error_line(mtp("bench", "compare", str(missing), str(results[0])), 1)
    assert line.startswith(f"cannot read the result (given: {missing}: No such file or directory)")
    line = error_line(mtp("bench", "compare", str(results[0]), __file__), 1)
    assert line.startswith("not a result of mtp bench") and line.endswith("write one with mtp bench --json > FILE")


def test_an_estimate(pair):
    options = ("bench", "--estimate", pair.target, "--draft-model", pair.drafter, "-p", "40")
    result = mtp(*options)
    assert result.exit_code == 0 and result.stderr == ""
    lines = shape(result.stdout.replace(pair.target, "NAME").splitlines())
    assert [re.sub(r"Ne[-+]N", "N", line) for line in lines[:-1]] == ESTIMATE.splitlines()
    assert lines[-1].startswith("on ")
    found = json.loads(mtp(*options, "--json").stdout)
    assert found["context"] == 40 and list(found["round_seconds"]) == ["1", "2", "3", "4", "6", "8"]


def test_an_estimate_without_a_drafter(pair):
    for options in ((), ("--draft-model", pair.drafter, "--no-draft")):
        lines = mtp("bench", "--estimate", pair.target, *options).stdout.splitlines()
        assert lines[3] == "without a drafter (--draft-model names its folder)" and len(lines) == 7


@pytest.mark.parametrize(
    ("options", "code", "line"),
    [
        (["7b"], 2, "no such model to estimate (given: 7b); there are e2b, e4b, 12b, 26b-a4b, 31b, demo, or a folder"),
        (["demo", "--suite", "chat"], 2, "--suite does not go with --estimate; leave one out"),
        (["demo", "-o", "csv"], 2, "--estimate prints a table or JSON only (given: csv); use -o json"),
        (["demo", "--draft-model", "x/y"], 2, "an estimate takes its drafter from a folder (given: x/y); leave out"),
    ],
)
def test_what_cannot_be_estimated(options, code, line):
    assert error_line(mtp("bench", "--estimate", *options), code).startswith(line)


def test_a_wrong_pair_is_not_estimated(pair):
    line = error_line(mtp("bench", "--estimate", "demo", "--draft-model", pair.drafter), 1)
    assert line.startswith("wrong pair: the target has hidden size ")
