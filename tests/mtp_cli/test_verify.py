"""`mtp verify` and `--exact`, on a tiny pair and the reference BLAS, where all widths agree."""

import json
import shutil
from pathlib import Path

import pytest

from mtp_weights import preferences
from tests.mtp_cli.conftest import error_line, mtp


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def verify(pair, *arguments: str):
    return mtp("verify", pair.target, "--draft-model", pair.drafter, "-n", "8", "--num-draft-tokens", "2", *arguments)


def test_a_pair_that_is_right(pair):
    result = verify(pair)
    assert result.exit_code == 0, result.stdout
    lines = result.stdout.splitlines()
    assert lines[0].startswith("✓ target files") and lines[1].startswith("✓ drafter files")
    assert lines[-1].split(maxsplit=2)[2] == "bit-exact: all widths compute the same bits, in every kind of layer"
    assert all(line.startswith("✓") for line in lines)
    assert preferences.draft_position(pair.target, pair.drafter) in ("next", "last_cached")


def test_as_json(pair):
    report = json.loads(verify(pair, "--json").stdout)
    assert set(report) == {"checks", "contract", "kinds", "divergences", "exact", "draft_positions"}
    assert set(report["contract"]) == {"name", "reason", "is_fault"} and report["contract"]["name"] == "bit-exact"
    assert {kind["name"] for kind in report["kinds"]} >= {"sliding", "full", "head"}
    assert set(report["draft_positions"]) == {"next", "last_cached"}


def test_damaged_files_end_it(pair, tmp_path):
    target = tmp_path / "target"
    shutil.copytree(pair.target, target)
    data = bytearray((target / "model.safetensors").read_bytes())
    data[-2:] = b"\xc0\x7f"  # a bfloat16 NaN
    (target / "model.safetensors").write_bytes(data)
    result = mtp("verify", str(target), "--draft-model", pair.drafter)
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 3 and "✗ target files" in result.stdout


def test_exact_generation_says_what_it_costs(pair):
    arguments = ("generate", "-p", "hello", "--raw", "-m", "12", "--exact")
    drafted = mtp(*arguments, *pair.options)
    plain = mtp(*arguments, "--model", pair.target, "--no-draft")
    assert drafted.stdout == plain.stdout != ""
    assert "exact to the bit: all rows are computed as one row is, at most 8 drafts a round" in drafted.stderr
    assert error_line(mtp(*arguments[:-3], "-m", "-1", "--exact", "--no-draft", "--model", pair.target), 2).startswith(
        "exact decoding needs a limit"
    )


def test_exact_bench(pair, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hello\n")
    report = json.loads(mtp("bench", "--prompts", str(prompts), "-n", "8", "--exact", "--json", *pair.options).stdout)
    assert report["exact"] == {"computed_rows": list(range(1, 10)), "price": 1.0}


def test_draft_position(pair):
    arguments = ("generate", "-p", "hello", "--raw", "-m", "6", *pair.options, "--draft-position")
    assert mtp(*arguments, "last_cached").stdout == mtp(*arguments, "next").stdout != ""
    assert error_line(mtp(*arguments, "first"), 2).startswith("--draft-position must be next or last_cached")


def test_memory_is_asked_before_anything_is_loaded(pair, monkeypatch):
    monkeypatch.setattr("mtp_mlx.memory.available", lambda: 1000)
    arguments = ("generate", "-p", "hello", "--raw", "-m", "2", *pair.options)
    line = error_line(mtp(*arguments), 1)
    assert line.startswith("the pair needs ") and "this machine has 0.0 MB for a model (given: target " in line
    assert line.endswith("; use a smaller model, or --force to try it all the same")
    forced = mtp(*arguments, "--force")
    assert forced.exit_code == 0 and "the pair needs" in forced.stderr


def test_what_was_kept_is_used(pair, monkeypatch):
    preferences.keep_draft_position(pair.target, pair.drafter, "last_cached")
    loaded = []
    import mtp_mlx

    load_drafter = mtp_mlx.load_drafter
    monkeypatch.setattr(
        mtp_mlx, "load_drafter", lambda *args, **options: loaded.append(options) or load_drafter(*args, **options)
    )
    mtp("generate", "-p", "hello", "--raw", "-m", "2", *pair.options)
    assert loaded == [{"draft_position": "last_cached"}]
    assert Path.home() in preferences.file().parents
