"""What a name stands for: a folder, the demo pair, a repository, or nothing."""

from pathlib import Path

import pytest

from mtp_weights import locate
from mtp_weights.errors import MisuseError, UserError
from mtp_weights.locate import bundled_folder, resolve


@pytest.fixture
def downloads(monkeypatch, tmp_path_factory) -> list[tuple[str, str | None]]:
    """Records what would be downloaded."""
    asked: list[tuple[str, str | None]] = []
    snapshot = tmp_path_factory.mktemp("snapshot")

    def download(repo: str, revision: str | None) -> Path:
        asked.append((repo, revision))
        return snapshot

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
    assert resolve("google/gemma-4-E2B-it") == resolve("google/gemma-4-E2B-it", "v1") == resolve("e2b")
    assert downloads == [("google/gemma-4-E2B-it", revision) for revision in (None, "v1", None)]


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


def test_a_link_out_of_the_folder_is_never_followed(tmp_path):
    (tmp_path / "secret.json").write_text("{}")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").symlink_to("../secret.json")
    with pytest.raises(UserError, match="a link that leads out of its folder .*tokenizer.json -> ../secret.json"):
        resolve(str(folder))


def test_links_within_a_folder_and_to_the_folder_are_fine(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "real.json").write_text("{}")
    (folder / "config.json").symlink_to("real.json")
    (tmp_path / "link").symlink_to(folder)
    assert resolve(str(folder)) == folder
    assert resolve(str(tmp_path / "link")) == tmp_path / "link"


def test_a_snapshot_links_to_the_blobs_of_its_cache_and_nowhere_else(tmp_path):
    cache = tmp_path / "hub" / "models--a--b"
    snapshot = cache / "snapshots" / "0123"
    for folder in (snapshot, cache / "blobs"):
        folder.mkdir(parents=True)
    (cache / "blobs" / "x").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/x")
    assert resolve(str(snapshot)) == snapshot
    (tmp_path / "outside").write_text("{}")
    (snapshot / "tokenizer.json").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="leads out of its folder"):
        resolve(str(snapshot))
