"""The way of a checkpoint: `mtp convert`, then `mtp verify`, then `mtp bench` on what it wrote, for tiny pairs of the
five architectures (an E4B differs from an E2B in sizes only); and mlx-lm's own command on the same folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny, tiny_tokenizer
from tests.mtp_cli.conftest import mtp

WAYS = {
    "4bit": ["-q", "--q-bits", "4"],
    "8bit": ["-q", "--q-bits", "8", "--q-group-size", "32"],
    "mixed": ["-q", "--quant-predicate", "mixed_3_6"],
}
ARCHITECTURES = ("e2b", "12b", "26b", "31b", "llama")


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Where `mtp verify` keeps the better draft position."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def write_pair(name: str, folder: Path) -> dict[str, Path]:
    config = tiny.target_config(name, vocab_size=tiny_tokenizer.VOCAB_SIZE)
    if config.get("hidden_size_per_layer_input"):
        config["vocab_size_per_layer_input"] = tiny_tokenizer.VOCAB_SIZE
    target = tiny.write_target(folder / "target", config)
    tiny_tokenizer.write_tokenizer(target)
    drafter = tiny.write_drafter(folder / "drafter", tiny.drafter_config(config, clustered=name == "e2b"))
    return {"target": target, "drafter": drafter}


def convert(source: Path, folder: Path, *how: str) -> str:
    result = mtp("convert", "--hf-path", str(source), "--mlx-path", str(folder), *how)
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_convert_verify_bench(name, way, tmp_path, request):
    if list(WAYS).index(way) != ARCHITECTURES.index(name) % len(WAYS) and not request.config.getoption("--all-chains"):
        pytest.skip("one way for each architecture; --all-chains takes all")
    sources = write_pair(name, tmp_path)
    target, drafter = (convert(sources[part], tmp_path / f"{part}-{way}", *WAYS[way]) for part in sources)

    result = mtp("verify", target, "--draft-model", drafter, "-n", "3", "--num-draft-tokens", "2", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert {check["state"] for check in report["checks"]} == {"ok"}
    assert report["contract"]["name"] == "bit-exact"

    (tmp_path / "prompts.txt").write_text("hello\n")
    arguments = ["-n", "12", "--num-draft-tokens", "2", "--prompts", str(tmp_path / "prompts.txt"), "--json"]
    result = mtp("bench", "--model", target, "--draft-model", drafter, *arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["model"], report["diverged"]) == (target, 0)
    assert report["overall"]["speculation"]["drafted"] > 0


@pytest.mark.parametrize("name", ["e2b", "26b"])
def test_mlx_lm_s_own_command_writes_the_same_text(name, tmp_path):
    source = write_pair(name, tmp_path)["target"]
    folder = convert(source, tmp_path / "converted", "-q", "--q-bits", "4", "--dtype", "float32")
    arguments = ["--prompt", "hello", "--max-tokens", "10"]
    command = [sys.executable, "-m", "mlx_lm", "generate", "--model", folder, "--ignore-chat-template", *arguments]
    theirs = subprocess.run([*command, "--temp", "0"], capture_output=True, text=True)
    assert theirs.returncode == 0, theirs.stderr
    text = theirs.stdout.split("==========\n")[1].rstrip("\n")
    ours = mtp("generate", "--model", folder, "--no-draft", "--raw", "--temp", "0", *arguments).stdout.rstrip("\n")
    assert text and ours == text
