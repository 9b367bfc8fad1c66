"""Downloads from a stand-in hub, the cache without a connection, and one line for every way to fail."""

import errno
import shutil
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from mtp_weights import hub as hub_module
from mtp_weights.errors import UserError
from mtp_weights.hub import download
from tests.mtp_weights import hub_server
from tests.mtp_weights.hub_server import COMMIT, serving

REPO = "somebody/gemma-4-tiny"
NEEDED = {
    "config.json": b"{}",
    "model.safetensors": b"\x02" + bytes(7) + b"{}",
    "tokenizer.json": b"{}",
    "tokenizer.model": b"x",
    "chat_template.jinja": b"{{ messages }}",
}
OTHERS = {"README.md": b"#", "model.gguf": b"GGUF", "onnx/config.json": b"{}", "original/model.safetensors": b"x"}
UNREACHABLE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def on_line_without_a_proxy(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def hub():
    with serving(REPO, {**NEEDED, **OTHERS}) as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_downloads_what_is_needed_and_nothing_else(hub, cache):
    folder = download(REPO, endpoint=hub.endpoint, cache=cache)
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert files == NEEDED


def test_a_complete_snapshot_is_used_without_a_connection(hub, cache):
    folder = download(REPO, endpoint=hub.endpoint, cache=cache)
    assert download(REPO, endpoint=UNREACHABLE, cache=cache) == folder
    hub.refusals = {"api": (503, None)}
    assert download(REPO, endpoint=hub.endpoint, cache=cache) == folder


def test_a_cached_file_is_not_fetched_again(hub, cache):
    folder = download(REPO, COMMIT, endpoint=hub.endpoint, cache=cache)
    (folder / "tokenizer.json").unlink()
    hub.requested.clear()
    assert download(REPO, COMMIT, endpoint=hub.endpoint, cache=cache) == folder
    fetched = [path for path in hub.requested if "/resolve/" in path]
    assert fetched and all(path.endswith("/tokenizer.json") for path in fetched)


def test_what_is_here_already_costs_one_question(hub, cache):
    folder = download(REPO, endpoint=hub.endpoint, cache=cache)
    hub.requested.clear()
    assert download(REPO, endpoint=hub.endpoint, cache=cache) == folder
    assert hub.requested == [f"/api/models/{REPO}/revision/main"]


def test_a_newer_commit_is_fetched(hub, cache, monkeypatch):
    old = download(REPO, endpoint=hub.endpoint, cache=cache)
    monkeypatch.setattr(hub_server, "COMMIT", "f" * 40)
    hub.files["config.json"] = b'{"new": 1}'
    hub.sent.clear()
    new = download(REPO, endpoint=hub.endpoint, cache=cache)
    assert (new.name, (new / "config.json").read_bytes()) == ("f" * 40, b'{"new": 1}')
    assert (old / "config.json").read_bytes() == b"{}"
    assert {name for name, size in hub.sent.items() if size} == {"config.json"}
    assert download(REPO, endpoint=UNREACHABLE, cache=cache) == new


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_partial_snapshot_names_what_is_missing(hub, cache, missing):
    folder = download(REPO, endpoint=hub.endpoint, cache=cache)
    (folder / missing).unlink()
    with pytest.raises(UserError, match=f"incomplete, 1 of 5 files are missing: {missing} .*connect to the hub"):
        download(REPO, endpoint=UNREACHABLE, cache=cache)


@pytest.mark.parametrize(("missing", "message"), [("config.json", "config.json"), ("model.safetensors", "weights")])
def test_a_partial_snapshot_of_an_older_client_is_noticed_too(hub, cache, tmp_path, missing, message):
    folder = download(REPO, endpoint=hub.endpoint, cache=cache)
    (folder / missing).unlink()
    older = tmp_path / "older"  # another path, because the client remembers listings by path
    shutil.copytree(cache, older, symlinks=True, ignore=shutil.ignore_patterns("trees"))
    with pytest.raises(UserError, match=message):
        download(REPO, endpoint=UNREACHABLE, cache=older)


def test_a_repository_without_a_checkpoint(cache):
    with (
        serving(REPO, {"model.gguf": b"GGUF", "README.md": b"#"}) as hub,
        pytest.raises(UserError, match="has no config.json"),
    ):
        download(REPO, endpoint=hub.endpoint, cache=cache)


@pytest.mark.parametrize(
    ("kind", "status", "code", "message"),
    [
        ("api", 401, None, r"asks for a login, or there is no such repository \(401\) .*hf auth login"),
        ("api", 401, "RepoNotFound", r"asks for a login, or there is no such repository \(401\)"),
        ("api", 403, None, r"refuses access to the repository \(403\)"),
        ("api", 404, "RepoNotFound", r"no such repository on the hub, and no such local folder \(404\)"),
        ("api", 404, None, r"no such repository on the hub, and no such local folder \(404\)"),
        ("api", 404, "RevisionNotFound", "no such revision .*at v9"),
        ("api", 503, None, "answers with error 503 .*try again later"),
        ("file", 401, "GatedRepo", "gated .*accept its terms .*hf auth login"),
        ("file", 403, "GatedRepo", "gated .*accept its terms"),
        ("file", 403, None, r"refuses access to the repository \(403\)"),
    ],
)
def test_every_refusal_has_its_own_line(hub, cache, kind, status, code, message):
    hub.refusals = {kind: (status, code)}
    revision = "v9" if code == "RevisionNotFound" else None
    with pytest.raises(UserError, match=message) as caught:
        download(REPO, revision, endpoint=hub.endpoint, cache=cache)
    assert REPO in str(caught.value) and "\n" not in str(caught.value)


def test_another_repository_is_not_there(hub, cache):
    with pytest.raises(UserError, match="no such repository .*somebody/else"):
        download("somebody/else", endpoint=hub.endpoint, cache=cache)


def test_no_connection_and_nothing_cached(cache):
    with pytest.raises(UserError, match=f"cannot reach the hub, and the cache has no complete copy .*{REPO}"):
        download(REPO, endpoint=UNREACHABLE, cache=cache)


@pytest.mark.parametrize("repo", ["some body/name", "a--b/..", "x/y\0", "owner/" + "n" * 200])
def test_what_cannot_be_a_repository_id(cache, repo):
    with pytest.raises(UserError, match="not a repository id"):
        download(repo, endpoint=UNREACHABLE, cache=cache)


def offline() -> LocalEntryNotFoundError:
    error = LocalEntryNotFoundError("outgoing traffic has been disabled")
    error.__cause__ = OfflineModeIsEnabled("offline")
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no space left for the download .*free some space"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "no space left for the download"),
        (RuntimeError("Data processing error: I/O error: No space left (os error 28)"), "no space left"),
        (PermissionError(errno.EACCES, "Permission denied", "/cache/models"), "cannot be written .*/cache/models"),
        (RuntimeError("\nrequest failed\nbacktrace"), "cannot reach the hub.*request failed"),
        (ConnectionError(), "cannot reach the hub.*ConnectionError"),
        (offline(), "set to work offline.*HF_HUB_OFFLINE"),
    ],
)
def test_failures_of_this_machine(monkeypatch, error, message):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(hub_module, "snapshot_download", fail)
    with pytest.raises(UserError, match=message) as caught:
        download(REPO)
    assert "\n" not in str(caught.value)
