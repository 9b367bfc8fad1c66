"""Interrupted downloads go on where they stopped: the stand-in hub counts the bytes that it sends."""

import json
import os
import random
import shutil
from collections import namedtuple
from pathlib import Path

import mlx.core as mx
import pytest

from mtp_weights import transfer
from mtp_weights.errors import UserError
from mtp_weights.hub import cache_state, cached_repositories, download, snapshot_of
from mtp_weights.read import read_weights
from mtp_weights.shards import INDEX
from tests.mtp_weights.hub_server import COMMIT, checksum, serving

REPO = "somebody/gemma-4-tiny"
UNREACHABLE = "http://127.0.0.1:9"
SIZE = 200_000


@pytest.fixture(autouse=True)
def on_line_without_a_proxy(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setattr(transfer, "WAIT_SECONDS", 0.0)


@pytest.fixture
def hub():
    weights = b"\x02" + bytes(7) + b"{}" + random.Random(0).randbytes(SIZE - 10)
    with serving(REPO, {"config.json": b"{}", "model.safetensors": weights}) as server:
        yield server


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def parts(cache: Path) -> list[Path]:
    return list(cache.rglob("*.part"))


def blob(cache: Path, hub) -> Path:
    storage = cache / f"models--{REPO.replace('/', '--')}"
    return storage / "blobs" / checksum("model.safetensors", hub.files["model.safetensors"])


def test_a_broken_connection_goes_on_by_itself(hub, cache):
    hub.breaks_after = 120_000
    folder = download(REPO, endpoint=hub.endpoint, cache=cache)
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert hub.sent["model.safetensors"] == SIZE


class Interrupted(Exception):
    """What Ctrl-C or a kill does, in a test."""


def test_an_interrupted_download_fetches_no_byte_twice(hub, cache):
    def interrupt(file: str, done: int, size: int) -> None:
        if file == "model.safetensors" and size > done >= limit:
            raise Interrupted

    for limit in (50_000, 100_000, 150_000):
        hub.breaks_after = limit + len(
            hub.files["config.json"]
        )  # so that nothing is under way when the interruption comes
        with pytest.raises(Interrupted):
            download(REPO, endpoint=hub.endpoint, cache=cache, progress=interrupt)
        assert len(parts(cache)) == 1 and not blob(cache, hub).exists()
        assert snapshot_of(REPO, cache) is None
        assert cache_state(REPO, cache) == "partly"
    folder = download(REPO, endpoint=hub.endpoint, cache=cache)
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert hub.sent["model.safetensors"] == SIZE
    assert not parts(cache)
    assert cache_state(REPO, cache) == "yes"


@pytest.mark.parametrize("has_xet", [False, True])
def test_a_file_on_another_host_goes_on_there_and_the_token_stays_here(hub, cache, monkeypatch, has_xet):
    """As the hub keeps large files. Where it offers xet, too, the plain address is asked all the same."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.redirects, hub.has_xet, hub.breaks_after = True, has_xet, 120_000
    folder = download(REPO, endpoint=hub.endpoint, cache=cache)
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert hub.sent["model.safetensors"] == SIZE
    assert set(zip(("other-host" in path for path in hub.requested), hub.tokens, strict=True)) == {
        (False, "Bearer hf_secret"),
        (True, None),
    }
    assert not any("xet" in path for path in hub.requested)


def test_half_a_download_is_never_loaded(hub, cache):
    with pytest.raises(Interrupted):
        download(REPO, endpoint=hub.endpoint, cache=cache, progress=raising(Interrupted))
    with pytest.raises(UserError, match="cannot reach the hub, and the cache has no complete copy|incomplete"):
        download(REPO, endpoint=UNREACHABLE, cache=cache)
    assert snapshot_of(REPO, cache) is None


def raising(error: type[Exception]):
    def progress(file: str, done: int, size: int) -> None:
        if file == "model.safetensors":
            raise error

    return progress


def test_a_server_without_ranges_starts_again(hub, cache):
    hub.knows_ranges, hub.breaks_after = False, 120_000
    folder = download(REPO, endpoint=hub.endpoint, cache=cache)
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_a_damaged_part_is_noticed_and_thrown_away(hub, cache):
    part = blob(cache, hub).with_name(blob(cache, hub).name + ".part")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1000)
    with pytest.raises(UserError, match="model.safetensors arrived damaged: its checksum .*run it again"):
        download(REPO, endpoint=hub.endpoint, cache=cache)
    assert snapshot_of(REPO, cache) is None
    download(REPO, endpoint=hub.endpoint, cache=cache)
    assert snapshot_of(REPO, cache) is not None


def test_a_part_longer_than_the_file_is_thrown_away(hub, cache):
    part = blob(cache, hub).with_name(blob(cache, hub).name + ".part")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * (SIZE + 1))
    download(REPO, endpoint=hub.endpoint, cache=cache)
    assert hub.sent["model.safetensors"] == SIZE


def test_the_disk_is_asked_before_anything_is_fetched(hub, cache, monkeypatch):
    usage = namedtuple("usage", "total used free")(10**6, 10**6 - 1000, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="the download needs 0 MB, the disk has 0 MB left .*free some space"):
        download(REPO, endpoint=hub.endpoint, cache=cache)
    assert not hub.sent


def test_progress_says_what_is_here_of_each_file(hub, cache):
    seen = {}
    download(REPO, endpoint=hub.endpoint, cache=cache, progress=lambda file, *figures: seen.update({file: figures}))
    assert seen == {"config.json": (2, 2), "model.safetensors": (SIZE, SIZE)}


def test_shards_of_towers_are_not_downloaded_nor_missed(cache, tmp_path):
    files, weight_map = {"config.json": b"{}"}, {}
    for n, name in enumerate(("model.language_model.norm.weight", "model.vision_tower.x", "model.audio_tower.x"), 1):
        shard = f"model-{n:05}-of-00003.safetensors"
        mx.save_safetensors(str(tmp_path / "shard.safetensors"), {name: mx.ones(n)})
        files[shard], weight_map[name] = (tmp_path / "shard.safetensors").read_bytes(), shard
    files[INDEX] = json.dumps({"weight_map": weight_map}).encode()
    with serving(REPO, files) as hub:
        folder = download(REPO, endpoint=hub.endpoint, cache=cache)
        assert hub.sent["model-00002-of-00003.safetensors"] == 0
    assert not (folder / "model-00003-of-00003.safetensors").exists()
    assert list(read_weights(folder)) == ["model.language_model.norm.weight"]
    assert download(REPO, endpoint=UNREACHABLE, cache=cache) == folder
    assert snapshot_of(REPO, cache) == folder


def test_what_the_cache_has(hub, cache):
    assert cached_repositories(cache) == []
    assert (snapshot_of(REPO, cache), cache_state(REPO, cache)) == (None, "no")
    folder = download(REPO, endpoint=hub.endpoint, cache=cache)
    assert cached_repositories(cache) == [REPO]
    assert snapshot_of(REPO, cache) == folder
    os.unlink(folder / "model.safetensors")
    assert (snapshot_of(REPO, cache), folder.name) == (None, COMMIT)
