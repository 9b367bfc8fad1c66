"""Whole transcripts of `mtp bench`."""

import json
import re

import pytest

from mtp_cli.bench_table import _acceptance
from mtp_mlx import Speculation
from tests.mtp_cli.conftest import error_line, mtp

QUICK = ("--limit", "1", "--num-tokens", "12", "--num-draft-tokens", "2")
TABLE = """\
                     plain    MTP                        tokens  repeated
category    prompts  tok/s  tok/s  speed-up  quartiles  a round   8-grams
chat              N      N      N        N×        N–N        N        N%
code              N      N      N        N×        N–N        N        N%
prose             N      N      N        N×        N–N        N        N%
structured        N      N      N        N×        N–N        N        N%
all               N      N      N        N×        N–N        N        N%

VERDICT

protocol     greedy, N tokens a run (stop ids ignored), N run of each prompt, drafts a round: N
accepted     N% of the drafts; by position N% · N%
output       equal to plain decoding's on all N prompts
prefill      N (N–N) tok/s
peak memory  plain N MB, MTP N MB (target N MB, drafter N MB, keys and values N MB)
"""


def shape(lines: list[str]) -> list[str]:
    """Every number as N and every gap as one blank."""
    return [re.sub(" +", " ", re.sub(r"\d+(\.\d+)?", "N", line)).strip() for line in lines]


def test_the_table_is_on_stdout_and_says_how_it_was_measured(pair):
    result = mtp("bench", *pair.options, *QUICK)
    assert result.exit_code == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    verdict = r"MTP (decodes N× as fast as|is not faster than) plain decoding here(: N×)?, with equal output\."
    assert re.fullmatch(verdict, shape(lines)[8])
    lines[8] = "VERDICT"
    assert shape(lines[:15]) == shape(TABLE.splitlines())
    assert lines[15].startswith("machine      ") and lines[16].startswith("computed on  cpu, MLX ")
    assert lines[16].endswith("BLAS: reference")
    assert max(map(len, lines)) <= 120


def test_sampling_and_the_lenient_rule_are_named(pair):
    lines = mtp("bench", *pair.options, *QUICK, "--temp", "1", "--top-k", "9", "--lenient").stdout.splitlines()
    assert lines[8].endswith("with equally distributed output.")
    assert lines[10].startswith("protocol     temperature 1, top-k 9, 12 tokens a run")
    assert lines[12].startswith("output       drawn anew in each run")
    assert re.match(r"lenient +N× plain; output may differ from the target's: N% of tokens are not", shape(lines)[13])


def test_it_says_why_nothing_was_drafted():
    assert _acceptance(Speculation(rounds=3)) == "nothing was drafted, because it does not pay here"


def test_json_is_alone_on_stdout(pair):
    result = mtp("bench", *pair.options, *QUICK, "--json", "--repeats", "2")
    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert report["model"] == pair.target and report["diverged"] == 0
    assert [len(entry["runs"]["mtp"]) for entry in report["prompts"]] == [2] * 4
    assert report["overall"]["speculation"]["drafted"] > 0


def test_one_s_own_prompts(pair, tmp_path):
    file = tmp_path / "letters.txt"
    file.write_text("one\ntwo\nthree\n")
    result = mtp("bench", *pair.options, "--limit", "2", "-n", "8", "--prompts", str(file), "--json")
    report = json.loads(result.stdout)
    assert [(entry["category"], entry["prompt"]) for entry in report["prompts"]] == [
        ("letters", "one"),
        ("letters", "two"),
    ]


def test_without_a_drafter_it_measures_plain_decoding(pair):
    result = mtp("bench", "--model", pair.target, "--no-draft", *QUICK)
    assert result.exit_code == 0
    assert re.search(r"all +4 +\d+\.\d +– +– +– +– +\d+%", result.stdout)
    assert "output" not in result.stdout


@pytest.mark.parametrize(
    ("content", "arguments", "code", "line"),
    [
        (None, [], 1, "cannot read the prompts (given: "),
        (b"\xff", [], 1, "prompts must be UTF-8 text"),
        (b"", [], 2, "the file has no prompts"),
        (b"x" * 3000, [], 2, "prompt and output must fit into the model's context of 1024 tokens"),
        (b"x", ["--num-tokens", "1"], 2, "decoding is timed from the first token to the last: 2 at least (given: 1)"),
        (b"x", ["--num-tokens", "2"], 1, "nothing was drafted (given: 2 tokens a prompt); measure more tokens"),
    ],
)
def test_prompts_that_cannot_be_measured(pair, tmp_path, content, arguments, code, line):
    file = tmp_path / "prompts.txt"
    if content is not None:
        file.write_bytes(content)
    result = mtp("bench", *pair.options, "--prompts", str(file), *arguments)
    assert error_line(result, code).startswith(line)
