"""`mtp pull` and `mtp models`, against a stand-in hub and a cache of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtp_weights.pairs import PAIRS
from tests import tiny
from tests.mtp_cli.conftest import error_line, mtp
from tests.mtp_weights.hub_server import serving

TARGET, DRAFTER = "somebody/tuned-e2b", "google/gemma-4-E2B-it-assistant"
CONFIG = tiny.target_config("e2b", hidden_size=1536)  # by which the drafter is found


def checkpoint(config: tiny.Config) -> dict[str, bytes]:
    return {"config.json": json.dumps(config).encode(), "model.safetensors": b"\x02" + bytes(7) + b"{}"}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with serving(TARGET, checkpoint(CONFIG)) as server:
        server.others = {DRAFTER: checkpoint(tiny.drafter_config(CONFIG, clustered=True))}
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server


@pytest.fixture
def endpoint(hub, monkeypatch) -> None:
    """The hub's address is also part of what its client made at import."""
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
    )


def test_a_target_comes_with_its_drafter(hub, endpoint):
    result = mtp("pull", TARGET)
    assert result.exit_code == 0, result.stderr
    target, drafter = map(Path, result.stdout.split())
    assert json.loads((target / "config.json").read_bytes()) == CONFIG
    assert json.loads((drafter / "config.json").read_bytes())["model_type"] == "gemma4_assistant"
    why = "because a target of hidden size 1536 is a Gemma 4 E2B"
    assert f"drafter: {DRAFTER}, {why}" in result.stderr
    assert "model.safetensors: 0.0 MB" in result.stderr


def test_the_settings_of_the_hubs_client_hold(hub, tmp_path):
    """In a process of its own, because the client reads them when it is imported."""

    def pull(**settings: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", "from mtp_cli.main import run; run()", "pull", TARGET]
        home = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.endpoint, "NO_PROXY": "127.0.0.1"}
        return subprocess.run(command, env={**os.environ, **home, **settings}, capture_output=True, text=True)

    offline = {"HF_HUB_OFFLINE": "1"}
    result = pull(**offline)
    assert (result.returncode, hub.requested) == (1, [])
    assert "set to work offline" in result.stderr and "HF_HUB_OFFLINE" in result.stderr
    result = pull(HF_TOKEN="hf_secret")
    assert result.returncode == 0, result.stderr
    asked = zip(hub.requested, hub.tokens, strict=True)
    assert {token for path, token in asked if TARGET in path or DRAFTER in path} == {"Bearer hf_secret"}
    assert all(Path(folder).is_relative_to(tmp_path / "home") for folder in result.stdout.split())
    hub.requested.clear()
    assert (pull(**offline).stdout, hub.requested) == (result.stdout, [])


def test_the_drafter_alone(hub, endpoint):
    result = mtp("pull", TARGET, "--drafter-only", "--json")
    assert list(json.loads(result.stdout)) == ["drafter"]
    assert not any(path.startswith(f"/{TARGET}/") and "safetensors" in path for path in hub.requested)
    assert list(json.loads(mtp("pull", DRAFTER, "--json").stdout)) == ["drafter"]


def test_what_mtp_cannot_run_is_refused_before_its_weights_are_fetched(hub, endpoint):
    hub.files = checkpoint({"model_type": "qwen2"})
    assert error_line(mtp("pull", TARGET), 1).startswith("not a model that mtp can run (given: model_type 'qwen2')")
    assert not any("safetensors" in path for path in hub.requested)


def test_a_repository_of_another_format(hub, endpoint):
    hub.files = {"model.gguf": b"GGUF"}
    line = error_line(mtp("pull", TARGET), 1)
    assert line.startswith(f"the repository lacks a file that a checkpoint has (given: {TARGET}: config.json)")


@pytest.mark.parametrize(
    ("refusal", "line"),
    [
        ((401, None), "the hub asks for a login, or there is no such repository (401)"),
        ((401, "GatedRepo"), "the repository is gated"),
        ((403, None), "the hub refuses access to the repository (403)"),
        ((404, "RepoNotFound"), "no such repository on the hub, and no such local folder (404)"),
    ],
)
def test_refusals(hub, endpoint, refusal, line):
    hub.refusals = {"api": refusal, "file": refusal}
    assert error_line(mtp("pull", TARGET), 1).startswith(line)


def test_names_that_cannot_be_pulled(tmp_path):
    for name in ("demo", str(tmp_path)):
        assert error_line(mtp("pull", name), 2).startswith("only repositories can be pulled")
    line = error_line(mtp("pull", "e3b"), 1)
    assert line.startswith("neither a local folder nor a repository id (given: 'e3b')")


def test_models_lists_official_ones_and_what_is_cached(hub, endpoint):
    mtp("pull", DRAFTER)
    listed = {entry["name"]: entry for entry in json.loads(mtp("models", "--json", "--context", "1000").stdout)}
    assert {pair.size for pair in PAIRS} <= listed.keys()
    e2b = listed["e2b-4bit"]
    facts = "name target drafter bits download_bytes is_estimate needed_bytes fits cached"
    assert {tuple(entry) for entry in listed.values()} == {tuple(facts.split())}
    assert e2b["target"] == "mlx-community/gemma-4-e2b-it-4bit"
    assert (e2b["drafter"], e2b["cached"], e2b["is_estimate"]) == (DRAFTER, "no", True)
    assert 2.4e9 < e2b["download_bytes"] < 3e9
    longer = {entry["name"]: entry for entry in json.loads(mtp("models", "--json", "--context", "9000").stdout)}
    assert longer["31b"]["needed_bytes"] > listed["31b"]["needed_bytes"]


def test_models_as_text(hub):
    result = mtp("models")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["name", "drafter", "bits", "download", "memory", "at", "8192", "fits", "cached"]
    assert any(line.startswith("26b-a4b-4bit ") and "~15." in line for line in lines)
    assert "This machine has" in result.stderr
    assert len(mtp("models", "--all").stdout.splitlines()) > len(lines)
