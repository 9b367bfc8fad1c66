"""`mtp train`: what it writes, `mtp generate` drafts with; it goes on after an interruption, and says what is wrong."""

import random
from pathlib import Path

import pytest

from tests.mtp_cli.conftest import Folders, mtp

SMALL = ["--max-seq-length", "24", "--batch-size", "2", "--num-draft-tokens", "2", "--top-k", "2", "--val-batches", "1"]
SIZES = ["--hidden-size", "16", "--intermediate-size", "16", "--num-layers", "2"]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("text") / "words.txt"
    words = random.Random(1).choices(["the", "a", "bell", "hour", "red", "inner"], k=120)
    file.write_text(" ".join(words))
    return file


def arguments(pair: Folders, data: Path, output: Path, *more: str) -> list[str]:
    return ["train", "--model", pair.target, "--data", str(data), "--output", str(output), *SMALL, *more]


def test_a_new_drafter_drafts(pair, text, tmp_path):
    output = tmp_path / "drafter"
    more = ["--num-centroids", "16", "--iters", "4", "--steps-per-report", "2"]
    result = mtp(*arguments(pair, text, output, *SIZES, *more))
    assert (result.exit_code, result.stdout) == (0, f"{output}\n"), result.stderr
    lines = result.stderr.splitlines()
    assert any("rows held out of it, because there is no validation file" in line for line in lines)
    assert any(line.startswith("step 2 of 4: loss ") and "tokens/s" in line for line in lines)
    assert any("of the choices in the clusters scored" in line for line in lines)
    drafted = mtp("generate", "-p", "the", "--raw", "-m", "6", "--model", pair.target, "--draft-model", str(output))
    assert drafted.exit_code == 0 and "drafts accepted" in drafted.stderr, drafted.stderr
