"""The contract, from measurements as they could be, and the files of checkpoints."""

import json
import re

import mlx.core as mx
import pytest

from mtp_mlx.bench.runs import Divergence
from mtp_mlx.decoding.widths import Widths
from mtp_mlx.doctor import ERROR, OK, WARNING
from mtp_mlx.exactness import ExactWay, Kind
from mtp_mlx.speculation import Speculation
from mtp_mlx.verify import (
    AT_WIDTH,
    BIT_EXACT,
    NOT_EXACT,
    Comparison,
    better_position,
    check_files,
    compare,
    contract,
    contract_check,
    greedy_check,
    positions,
    width_checks,
)
from mtp_weights import preferences
from tests.mtp_weights.hub_server import checksum
from tests.tiny import build_drafter, build_target, drafter_config, target_config, write_drafter, write_target

EXACT = Kind("sliding", 4, (), (), 0.0)
INEXACT = Kind("full", 1, (2, 3, 5), (2,), 2e-7)
SAME = Comparison((None, None))
TIE = Comparison((None, Divergence(6, 10, 11, 3e-6)))
FREE, PADDED = ExactWay(Widths((1, 2, 3)), 1.0), ExactWay(Widths((3, 3, 3)), 1.25)


@pytest.mark.parametrize(
    ("kinds", "ordinary", "way", "exact", "name", "reason"),
    [
        ([EXACT], SAME, None, None, BIT_EXACT, "all widths compute the same bits"),
        ([EXACT], TIE, None, None, NOT_EXACT, "this is a fault"),
        ([EXACT, INEXACT], TIE, FREE, SAME, BIT_EXACT, "with --exact, drafting 2 at most"),
        ([EXACT, INEXACT], TIE, PADDED, SAME, AT_WIDTH, "computes 3 rows for one, which takes 1.25 times as long"),
        ([EXACT, INEXACT], TIE, PADDED, TIE, NOT_EXACT, r"replies differ with --exact, too \(full\)"),
        ([INEXACT], SAME, None, None, NOT_EXACT, r"depends on its place among the others \(full\)"),
    ],
)
def test_contracts(kinds, ordinary, way, exact, name, reason):
    found = contract(kinds, ordinary, way, exact)
    assert found.name == name
    assert re.search(reason, found.reason)
    fault = name == NOT_EXACT and "report" in found.reason
    assert contract_check(found).state == (ERROR if fault else WARNING if name == NOT_EXACT else OK)


def test_lines_on_widths_and_replies():
    line = width_checks([EXACT, INEXACT], 5)[1]
    assert (line.state, line.name) == (WARNING, "full")
    assert line.text == "2–3, 5 rows round otherwise than 1 does, by 2e-07 of the largest number; 2 otherwise than 5"
    assert greedy_check(SAME).text == "the same with drafts and without, 2 of 2"
    assert greedy_check(TIE).text.startswith("1 of 2 differ with drafts; first at token 7, where the two best logits")
    wide = Comparison((Divergence(0, 1, 2, 0.5),))
    assert [greedy_check(each).state for each in (SAME, TIE, wide)] == [OK, WARNING, ERROR]


def test_a_tiny_pair_is_the_same_with_drafts_and_without():
    config = target_config("e2b")
    model, drafter = build_target(config), build_drafter(drafter_config(config, clustered=True))
    prompts, amounts = [[2, 5, 9], [2, 7]], {"num_tokens": 12, "num_draft_tokens": 3}
    assert compare(model, drafter, prompts, **amounts) == SAME
    found = positions(model, drafter, prompts, **amounts)
    assert list(found) == ["next", "last_cached"] and all(each.drafted for each in found.values())
    assert drafter.draft_position == "next"


def speculation(accepted: int) -> Speculation:
    return Speculation(100, (100,), (accepted,))


def test_the_usual_draft_position_is_left_only_for_a_better_one():
    assert better_position({"next": speculation(60), "last_cached": speculation(61)}) == "next"
    assert better_position({"next": speculation(60), "last_cached": speculation(80)}) == "last_cached"
    assert better_position({"next": speculation(80), "last_cached": speculation(60)}) == "next"


def test_what_was_found_better_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert preferences.draft_position("a/b", "c/d") is None
    preferences.keep_draft_position("a/b", "c/d", "last_cached")
    preferences.keep_draft_position("a/b", "e/f", "next")
    assert preferences.draft_position("a/b", "c/d") == "last_cached"
    for damaged in ("{", "[]", '{"a/b + c/d": 1}'):
        preferences.file().write_text(damaged)
        assert preferences.draft_position("a/b", "c/d") is None


def test_files_that_are_whole(tmp_path):
    target = write_target(tmp_path / "target", target_config("e2b"))
    assert check_files("target", target).state == OK
    assert "no download" in check_files("target", target).text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none(tmp_path, value):
    target = write_target(tmp_path / "target", target_config("e2b"))
    weights = mx.load(str(target / "model.safetensors"))
    weights["model.norm.weight"][3] = value
    mx.save_safetensors(str(target / "model.safetensors"), weights)
    check = check_files("target", target)
    assert (check.state, check.text) == (ERROR, "model.norm.weight holds numbers that are none (NaN or infinite)")


def test_a_missing_shard_is_named(tmp_path):
    target = write_target(tmp_path / "target", target_config("e2b"))
    (target / "model.safetensors").rename(target / "model-00001-of-00002.safetensors")
    assert "model-00002-of-00002.safetensors" in check_files("target", target).text


def test_a_file_of_the_cache_that_was_altered(tmp_path):
    source = write_drafter(tmp_path / "drafter", drafter_config(target_config("e2b"), clustered=True))
    storage = tmp_path / "models--a--b"
    snapshot, blobs = storage / "snapshots" / "0123", storage / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    for file in source.iterdir():
        blob = blobs / checksum(file.name, file.read_bytes())
        file.rename(blob)
        (snapshot / file.name).symlink_to(blob)
    assert "2 checksums are the hub's" in check_files("drafter", snapshot).text
    config = json.loads((snapshot / "config.json").read_text())
    (snapshot / "config.json").resolve().write_text(json.dumps({**config, "backbone_hidden_size": 65}))
    check = check_files("drafter", snapshot)
    assert check.state == ERROR and check.text.startswith("config.json is not the file that was downloaded")
