"""What a name stands for: a folder, the demo pair, a repository, or nothing."""

from pathlib import Path

import pytest

from mtp_weights import locate
from mtp_weights.errors import MisuseError, UserError
from mtp_weights.locate import bundled_folder, resolve


@pytest.fixture
def downloads(monkeypatch) -> list[tuple[str, str | None]]:
    """Records what would be downloaded."""
    asked: list[tuple[str, str | None]] = []

    def download(repo: str, revision: str | None) -> Path:
        asked.append((repo, revision))
        return Path("snapshot")

    monkeypatch.setattr(locate, "download", download)
    return asked


def test_a_local_folder(tmp_path, monkeypatch, downloads):
    (tmp_path / "google" / "gemma").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve(str(tmp_path)) == tmp_path
    assert resolve("google") == Path("google")
    assert resolve("google/gemma") == Path("google/gemma")  # before a repository of that name
    assert resolve("~/google") == tmp_path / "google"
    assert not downloads


def test_the_demo_pair_is_bundled(downloads):
    assert resolve("demo") == bundled_folder("demo")
    assert resolve("demo").parts[-2:] == ("demo", "target")
    assert resolve("demo-drafter").parts[-2:] == ("demo", "drafter")
    assert not downloads


def test_a_repository_is_downloaded(downloads, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve("google/gemma-4-E2B-it") == Path("snapshot")
    assert resolve("google/gemma-4-E2B-it", "v1") == Path("snapshot")
    assert downloads == [("google/gemma-4-E2B-it", None), ("google/gemma-4-E2B-it", "v1")]


@pytest.mark.parametrize(
    "name", ["./x", "../x", "/no/such/folder", "~/no-such-folder", "~nobody-here/x", "a/b/c", "models/", "C:\\models"]
)
def test_a_missing_path_is_not_taken_for_a_repository(downloads, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        resolve(name)
    assert not downloads


@pytest.mark.parametrize("name", ["gemma-4-E2B-it", "", " ", "demo2", "x" * 5000])
def test_a_name_that_is_neither(downloads, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="neither a local folder nor a repository id .*owner/name"):
        resolve(name)
    assert not downloads


def test_a_file_is_no_checkpoint(tmp_path, downloads):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match="a checkpoint is a folder, not a file"):
        resolve(str(tmp_path / "model.gguf"))


def test_a_local_folder_has_no_revisions(tmp_path, downloads):
    for name in (str(tmp_path), "demo"):
        with pytest.raises(MisuseError, match="no revisions"):
            resolve(name, "main")
