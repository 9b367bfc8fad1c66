"""`mtp train`: what it writes, `mtp generate` drafts with; it goes on after an interruption, and says what is wrong."""

import json
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mtp_cli.conftest import Folders, error_line, mtp, write_drafter

WORDS = ("the", "a", "bell", "hour", "red", "inner")
SMALL = ["--max-seq-length", "24", "--batch-size", "2", "--num-draft-tokens", "2", "--top-k", "2", "--val-batches", "1"]
SIZES = ["--hidden-size", "16", "--intermediate-size", "16", "--num-layers", "2"]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("text") / "words.txt"
    file.write_text(" ".join(random.Random(1).choices(WORDS, k=120)))
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
    again = mtp(*arguments(pair, text, output, *SIZES, *more, "--json"))
    report = json.loads(again.stdout)
    assert (report["steps"], report["steps_before"], len(report["evaluations"])) == (4, 4, 2)
    changed = mtp(*arguments(pair, text, output, *SIZES, *more, "--seed", "5"))
    line = error_line(changed, 1)
    assert "was begun with other settings: seed was 0" in line and "seed 5" in line


def start(*options: str) -> subprocess.Popen:
    command = [sys.executable, "-c", "from mtp_cli.main import run; run()", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_step(process: subprocess.Popen, step: int) -> None:
    for line in process.stderr:
        if line.startswith(f"step {step} of"):
            return
    raise AssertionError(f"it ended before step {step}")


def test_a_run_killed_and_a_run_stopped_end_with_the_same_bits(pair, text, tmp_path):
    options = ["--init", pair.drafter, "--iters", "40", "--steps-per-report", "1", "--save-every", "3"]
    whole = start(*arguments(pair, text, tmp_path / "whole", *options))
    assert whole.communicate()[0] == f"{tmp_path / 'whole'}\n"
    output = tmp_path / "interrupted"
    steps = sorted(random.sample(range(4, 36), 2))
    killed = start(*arguments(pair, text, output, *options))
    wait_for_step(killed, steps[0])
    killed.kill()
    killed.communicate()
    assert not list(output.glob("*.new"))[1:]  # at most the one that was being written
    stopped = start(*arguments(pair, text, output, *options))
    wait_for_step(stopped, max(steps[1], steps[0] + 2))
    stopped.send_signal(signal.SIGINT)
    _, shown = stopped.communicate()
    assert stopped.returncode == 130
    assert re.search(r"stopped and saved after step \d+; the same command goes on from there", shown), shown
    resumed = start(*arguments(pair, text, output, *options))
    _, shown = resumed.communicate()
    assert re.search(r"going on after step \d+ of 40", shown), shown
    for name in ("model.safetensors", "config.json"):
        assert (output / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), steps
    assert_same_training(output, tmp_path / "whole")


def assert_same_training(*folders: Path) -> None:
    import mlx.core as mx

    a, b = (mx.load(str(folder / "training.safetensors")) for folder in folders)
    assert a.keys() == b.keys() and all(mx.array_equal(a[name], b[name]) for name in a)


def test_the_target_writes_the_text_after_prompts(pair, tmp_path):
    data = tmp_path / "prompts.jsonl"
    data.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in (*WORDS, "the bell")))
    options = ["--init", pair.drafter, "--self-distill", "generate", "--iters", "2", "--max-seq-length", "60", "--json"]
    first = mtp(*arguments(pair, data, tmp_path / "a", *options, "--cache-dir", str(tmp_path / "cache")))
    assert first.exit_code == 0, first.stderr
    report = json.loads(first.stdout)
    assert report["train_tokens"] > 100 and report["held_out"]
    assert "writing text: 7 of 7" in first.stderr
    second = mtp(*arguments(pair, data, tmp_path / "b", *options, "--cache-dir", str(tmp_path / "cache")))
    assert "writing text" not in second.stderr and "reading text" not in second.stderr, second.stderr
    assert json.loads(second.stdout)["evaluations"] == report["evaluations"]


def test_a_configuration_file(pair, text, tmp_path):
    file = tmp_path / "train.yaml"
    values = {"model": pair.target, "data": str(text), "output": str(tmp_path / "out"), "iters": 50, "batch_size": 2}
    values |= {"max_seq_length": 24, "num_draft_tokens": 2, "init": pair.drafter, "val_batches": 1, "seed": 3}
    file.write_text(json.dumps(values))  # JSON is YAML, too
    result = mtp("train", "-c", str(file), "--iters", "1", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["steps"] == 1
    file.write_text("iters: 5\nbatchsize: 2\n")
    assert error_line(mtp("train", "-c", str(file)), 2).startswith(
        "no such option in the configuration file: batchsize"
    )
    file.write_text("- 1\n")
    assert error_line(mtp("train", "-c", str(file)), 2).startswith("a configuration file holds options")
    file.write_text("a: [")
    assert error_line(mtp("train", "-c", str(file)), 1).startswith("cannot read the configuration file")
    file.write_text("iters: many\n")
    assert "'--iters'" in error_line(mtp(*arguments(pair, text, tmp_path / "out", "-c", str(file))), 2)


def test_a_dry_run_writes_nothing(pair, text, tmp_path):
    options = arguments(pair, text, tmp_path / "out", *SIZES, "--iters", "30", "--dry-run")
    result = mtp(*options)
    assert result.exit_code == 0, result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines() if line[0] != " "] == [
        *("drafter", "text", "memory", "disk", "time")
    ]
    facts = json.loads(mtp(*options, "--json").stdout)
    assert facts["seconds"] > 0 and facts["memory"] > 0 and facts["observed_bytes"] > 0
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_is_refused(pair, text, tmp_path):
    def refused(code: int, *more: str, data: Path = text, output: Path = tmp_path / "out") -> str:
        return error_line(mtp(*arguments(pair, data, output, *more)), code)

    assert refused(2, "--iters", "0").startswith("--iters must be from 1")
    assert refused(2, "--val-batches", "0").startswith("--val-batches must be positive")
    assert refused(2, "--init", "x", "--num-layers", "2").startswith("a drafter that is gone on with keeps its sizes")
    assert refused(1, data=tmp_path / "none").startswith("no such file or folder with training text")
    assert refused(1, output=Path("/proc/none/drafter")).startswith("cannot make the folder")
    assert refused(1, output=Path(pair.drafter)).startswith(
        "the output folder has a model that mtp train did not write"
    )
    assert refused(2, *SIZES, "--num-centroids", "3").startswith("--num-centroids must be a power of two that divides")


def test_a_drafter_that_cannot_be_gone_on_with(pair, text, tmp_path):
    other = write_drafter(tmp_path / "other", hidden_size=32)
    line = error_line(mtp(*arguments(pair, text, tmp_path / "out", "--init", str(other))), 1)
    assert line.startswith("wrong pair: the target has hidden size")
    converted = tmp_path / "quantized"
    mtp(
        "convert",
        "--hf-path",
        pair.drafter,
        "--mlx-path",
        str(converted),
        "-q",
        "--q-bits",
        "8",
        "--q-group-size",
        "32",
    )
    line = error_line(mtp(*arguments(pair, text, tmp_path / "out2", "--init", str(converted))), 1)
    assert line.startswith("a quantized drafter cannot be trained")
    shutil.rmtree(tmp_path / "out2")
