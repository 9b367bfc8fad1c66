"""Whole transcripts of `mtp bench`."""

import csv
import json
import re

import pytest

from mtp_cli.bench_facts import acceptance
from mtp_mlx import Speculation
from tests import tiny, tiny_tokenizer
from tests.mtp_cli.conftest import error_line, mtp

SHORT = ("--suite", "chat,code", "--limit", "1", "--num-tokens", "12")
QUICK = (*SHORT, "--num-draft-tokens", "2")
TABLE = """\
                   plain    MTP                 95 %             tokens  repeated
category  prompts  tok/s  tok/s  speed-up         CI  quartiles  a round  8-grams
chat            N      N      N        N×          –        N–N        N       N%
code            N      N      N        N×          –        N–N        N       N%
all             N      N      N        N×        N–N        N–N        N       N%

VERDICT

protocol     greedy, N tokens a run (stop ids ignored), N run of each prompt in random order, drafts a round: N
accepted     N% of the drafts; by position N% · N%
rounds       ACCEPTED
over time    drafts a round N → N → N → N; tokens a round N → N → N → N
output       equal to plain decoding's on all N prompts
prefill      N (N–N) tok/s, first token after N ms (N–N)
round        draft N%, verify N%, accept N%, host N% of N ms (runs of their own, each phase waited for)
bandwidth    SHARES
peak memory  plain N MB, MTP N MB (target N MB, drafter N MB, keys and values N MB)
"""


def shape(lines: list[str]) -> list[str]:
    """Every number as N and every gap as one blank."""
    return [re.sub(" +", " ", re.sub(r"\d+(\.\d+)?", "N", line)).strip() for line in lines]


def test_the_table_is_on_stdout_and_says_how_it_was_measured(pair):
    result = mtp("bench", *pair.options, *QUICK)
    assert result.exit_code == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    verdict = (
        r"MTP (decodes N× as fast as plain decoding here \(95 % CI N–N\)|is not faster than plain decoding here: N×)"
        r", with equal output\."
    )
    assert re.fullmatch(verdict, shape(lines)[6].replace("N % CI", "95 % CI"))
    assert re.fullmatch(r"rounds accepted( N in N%,?)+", shape(lines)[10])
    assert re.match(r"bandwidth plain N%, MTP N% of N GB/s goes into reading weights", shape(lines)[15])
    lines[6], lines[10], lines[15] = "VERDICT", "rounds ACCEPTED", "bandwidth SHARES"
    assert shape(lines[:17]) == shape(TABLE.splitlines())
    assert lines[17].startswith("machine      ") and lines[18].startswith("computed on  cpu, MLX ")
    assert lines[18].endswith("BLAS: reference")
    assert max(map(len, lines)) <= 120


def test_runs_can_end_where_replies_do(pair):
    result = mtp("bench", *pair.options, *QUICK, "--stop-at-eos")
    assert result.exit_code == 0
    assert "greedy, up to 12 tokens a run, 1 run of each prompt" in result.stdout


def test_sampling_and_the_lenient_rule_are_named(pair):
    lines = mtp("bench", *pair.options, *QUICK, "--temp", "1", "--top-k", "9", "--lenient").stdout.splitlines()
    assert lines[6].endswith("with equally distributed output.")
    assert lines[8].startswith("protocol     temperature 1, top-k 9, 12 tokens a run")
    assert lines[12].startswith("output       drawn anew in each run")
    assert re.match(r"lenient +N× plain; output may differ from the target's: N% of tokens are not", shape(lines)[13])


def test_it_says_why_nothing_was_drafted():
    assert acceptance(Speculation(rounds=3)) == "nothing was drafted, because it does not pay here"


def test_json_is_alone_on_stdout(pair):
    result = mtp("bench", *pair.options, *QUICK, "--json", "--repeats", "2")
    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert report["model"] == pair.target and report["diverged"] == 0
    assert [len(entry["runs"]["mtp"]) for entry in report["prompts"]] == [2] * 2
    assert report["overall"]["speculation"]["drafted"] > 0


def test_csv_and_json_lines_have_a_row_for_each_category(pair):
    table = mtp("bench", *pair.options, *QUICK, "-o", "csv").stdout
    found = list(csv.DictReader(table.splitlines()))
    assert [row["category"] for row in found] == ["chat", "code", "all"]
    lines = mtp("bench", *pair.options, *QUICK, "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line).keys() for line in lines] == [found[0].keys()] * 3


def test_markdown(pair):
    lines = mtp("bench", *pair.options, *QUICK, "-o", "md").stdout.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0][:5] == ["category", "prompts", "plain tok/s", "MTP tok/s", "speed-up"]
    assert set("".join(cells[1])) <= set("-:") and len(cells[1]) == len(cells[0])
    assert [row[0] for row in cells[2:]] == ["chat", "code", "all"]


def test_a_sweep_has_a_row_for_each_depth_and_length(pair):
    sweep = ("-p", "20,30", "-g", "8,12", "--num-draft-tokens", "0,2", "--limit", "1")
    lines = mtp("bench", *pair.options, *sweep).stdout.splitlines()
    rows = [line.split()[:4] for line in lines[2:10]]
    expected = [(drafts, run, p) for run in ("8", "12") for drafts in ("0", "2") for p in ("20", "30")]
    assert rows == [[drafts, run, p, "tokens"] for drafts, run, p in expected]
    assert lines[11].startswith("fastest next to plain decoding: ") and " drafts a round, " in lines[11]
    assert lines[13].startswith("machine ")
    data = json.loads(mtp("bench", *pair.options, *sweep, "--json").stdout)
    assert [(r["num_tokens"], r["num_draft_tokens"]) for r in data["reports"]] == [(8, 0), (8, 2), (12, 0), (12, 2)]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--suite", "poems"], "there is no such suite (given: poems); there are chat, code, prose, structured,"),
        (["--suite", "chat", "--prompts", "x"], "--suite and --prompts exclude each other; give one of them"),
        (["-o", "xml"], "no such output format (given: xml); there are table, md, csv, json, jsonl"),
        (["-p", "0"], "--prompt-tokens must be a positive number, or several with commas between them (given: 0)"),
        (["-n", "8,x"], "--num-tokens must be a positive number, or several with commas between them (given: 8,x)"),
        (["--num-draft-tokens", "1,99"], "the number of draft tokens must be 'auto' or between 0 and 16 (given: 99)"),
        (["--delay", "-1"], "--delay must be between 0 and 3600 seconds (given: -1.0)"),
    ],
)
def test_misuse_is_told_before_a_model_is_loaded(arguments, line):
    assert error_line(mtp("bench", "--model", "nowhere", *arguments), 2).startswith(line)


def test_the_help_fits_80_columns():
    lines = mtp("bench", "--help").stdout.splitlines()
    assert max(map(len, lines)) <= 80 and any("--suite" in line for line in lines)


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
    assert re.search(r"all +2 +\d+\.\d +– +– +– +– +– +\d+%", result.stdout)
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


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> str:
    """A small model that drafts by itself."""
    config = tiny.target_config("llama", vocab_size=tiny_tokenizer.VOCAB_SIZE, num_hidden_layers=1)
    return str(tiny.write_target(tmp_path_factory.mktemp("drafters") / "small", config))


def test_drafters_are_compared_side_by_side(pair, small):
    result = mtp("bench", "--model", pair.target, "--drafters", f"{pair.drafter},{small}", *QUICK)
    assert result.exit_code == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    rows = [line.split() for line in lines]
    assert [row[0] for row in rows[2:4]] == ["drafter", "small"]
    table = {" ".join(row[:-2]): row[-2:] for row in rows if len(row) > 2}
    assert all(0 <= float(value) <= 2 for value in table["extra tokens, all"])
    assert all(re.fullmatch(r"\d+%", value) for value in table["accepted, place 1"] + table["accepted, place 2"])
    assert {"extra tokens, chat", "extra tokens, code", "first token, ms", "keys and values, MB"} <= table.keys()
    assert max(len(line) for line in lines if not line.startswith("fastest")) <= 120


def test_each_drafter_has_a_report(pair, small):
    result = mtp("bench", "--model", pair.target, "--drafters", f"{pair.drafter},{small}", *QUICK, "--json")
    reports = json.loads(result.stdout)["reports"]
    assert [report["drafter"] for report in reports] == [pair.drafter, small]
    assert all(report["drafting_first_token_seconds"]["median"] > 0 for report in reports)
    key_values = [report["memory_bytes"]["key_values"] for report in reports]
    assert key_values[1] > key_values[0]  # a store of its own beside the target's


def test_drafters_that_cannot_be_compared(pair):
    one = ("bench", "--model", pair.target, "--drafters")
    assert "--drafters goes with neither" in error_line(mtp(*one, "a,b", "--draft-model", "c"), 2)
    assert "--drafters goes with neither" in error_line(mtp(*one, "a,b", "--no-draft"), 2)
    assert "must be different names" in error_line(mtp(*one, "a,a"), 2)
