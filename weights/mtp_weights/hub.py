"""Downloads a checkpoint from the Hugging Face hub, or finds it in the cache."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import (
    HfApi,
    constants,
    get_cached_repo_tree,
    hf_hub_download,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    HFValidationError,
    HTTPError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.hf_api import RepoFile

from mtp_weights.errors import UserError
from mtp_weights.hub_errors import explain
from mtp_weights.json_file import read_object
from mtp_weights.shards import INDEX, tower_files, weight_files
from mtp_weights.transfer import Progress, RemoteFile, Transfer

_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer*"]
_SUBFOLDERS = ["*/*"]  # they hold other formats of the same weights


@dataclass(frozen=True)
class _Source:
    """A repository at a revision, on a hub, in a cache."""

    repo: str
    revision: str | None
    endpoint: str | None
    cache: Path

    @classmethod
    def of(
        cls, repo: str, revision: str | None = None, endpoint: str | None = None, cache: Path | None = None
    ) -> "_Source":
        """With the hub client's own settings where nothing is given."""
        return cls(repo, revision, endpoint, Path(cache or constants.HF_HUB_CACHE).expanduser().resolve())

    @property
    def storage(self) -> Path:
        return self.cache / repo_folder_name(repo_id=self.repo, repo_type="model")

    @property
    def place(self) -> dict:
        """Arguments that the hub's functions share."""
        return {"repo_id": self.repo, "revision": self.revision, "cache_dir": self.cache}


def download(
    repo: str,
    revision: str | None = None,
    *,
    endpoint: str | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetches what is needed of a repository; what is in the cache is not fetched again, parts of files included.

    Without a connection, a complete snapshot in the cache is used. Shards that hold nothing but image and audio towers
    are left out.

    Args:
        repo: repository id, owner/name.
        revision: branch, tag or commit; None for the main branch.
        endpoint: the hub's address; None for huggingface_hub's own setting.
        cache: the cache folder; None for huggingface_hub's own setting.
        progress: called with (file, bytes that are here, size of the file), from several threads.

    Returns:
        The snapshot's folder.

    Raises:
        UserError: not found, not allowed, not reachable, incomplete, damaged on the way, or no space.
    """
    source = _Source.of(repo, revision, endpoint, cache)
    with _explained(source):
        source = _fetch(source, progress)
        folder = Path(snapshot_download(**source.place, endpoint=endpoint, **_patterns(source)))
    _check(folder, repo)
    return folder


def download_config(
    repo: str, revision: str | None = None, *, endpoint: str | None = None, cache: Path | None = None
) -> dict[str, Any]:
    """Fetches config.json alone, to know what a repository holds before its weights are fetched.

    Raises:
        UserError: as `download`, or config.json holds no JSON object.
    """
    source = _Source.of(repo, revision, endpoint, cache)
    with _explained(source):
        file = hf_hub_download(**source.place, filename="config.json", endpoint=endpoint)
    return read_object(Path(file))


def snapshot_of(repo: str, cache: Path | None = None) -> Path | None:
    """The folder of a complete snapshot of the repository's main branch in the cache, or None."""
    source = _Source.of(repo, cache=cache)
    try:
        folder = Path(snapshot_download(**source.place, local_files_only=True, **_patterns(source)))
        _check(folder, repo)
    except (LocalEntryNotFoundError, IncompleteSnapshotError, UserError):
        return None
    return folder


def cache_state(repo: str, cache: Path | None = None) -> str:
    """Whether the cache has the repository: "yes", "partly" or "no"."""
    if snapshot_of(repo, cache) is not None:
        return "yes"
    blobs = _Source.of(repo, cache=cache).storage / "blobs"
    return "partly" if blobs.is_dir() and any(blobs.iterdir()) else "no"


def cached_repositories(cache: Path | None = None) -> list[str]:
    """The ids of all model repositories in the cache, complete or not."""
    folders = Path(cache or constants.HF_HUB_CACHE).expanduser().glob("models--*--*")
    return sorted("/".join(folder.name.split("--", 2)[1:]) for folder in folders)


@contextmanager
def _explained(source: _Source) -> Iterator[None]:
    """Turns what the hub's client raises into one line."""
    try:
        yield
    except HFValidationError as error:
        raise UserError("not a repository id", given=repr(source.repo), fix="it is owner/name") from error
    except IncompleteSnapshotError as error:
        raise _incomplete(error, source) from error
    # Status errors, broken connections, full disks; RuntimeError is what the client's Rust part raises.
    except (HTTPError, OSError, RuntimeError) as error:
        raise explain(error, source.repo, source.revision) from error


def _fetch(source: _Source, progress: Progress | None) -> _Source:
    """Brings the files that are needed into the cache; does nothing where the hub cannot be asked.

    Then `snapshot_download`, which asks again, knows what to make of it: a complete snapshot may be there.

    Returns:
        The source for `snapshot_download`: at a commit, for which it need not ask, where all files were here already.
    """
    try:
        commit = _commit(source)
        if _is_here(source, commit):
            return replace(source, revision=commit)
        files = _list(source, commit)
    except RevisionNotFoundError:
        raise
    except (HTTPError, OSError):
        return source
    transfer = Transfer(source.repo, commit, source.endpoint, source.storage, progress)
    if any(file.path == INDEX for file in files):
        hf_hub_download(**source.place, filename=INDEX, endpoint=source.endpoint)
    unneeded = _unneeded_shards(source)
    files = [file for file in files if file.path not in unneeded]
    _check_space(source, transfer.missing_bytes(files))
    snapshot = source.storage / "snapshots" / commit
    transfer.fetch([file for file in files if not (snapshot / file.path).exists()])
    return source


def _commit(source: _Source) -> str:
    """The commit that the revision stands for, by the hub."""
    api = HfApi(endpoint=source.endpoint)
    return api.repo_info(source.repo, revision=source.revision or constants.DEFAULT_REVISION).sha


def _is_here(source: _Source, commit: str) -> bool:
    """Whether the cache has everything that is needed of a commit, and knows the revision as this commit."""
    config = try_to_load_from_cache(source.repo, "config.json", cache_dir=source.cache, revision=source.revision)
    if not isinstance(config, str) or Path(config).parent.name != commit:
        return False
    try:
        return all(Path(config).with_name(path).exists() for path in _wanted(source))
    except CachedRepoTreeNotFoundError:  # an older client filled the cache
        return False


def _list(source: _Source, commit: str) -> list[RemoteFile]:
    """The files at a commit that a checkpoint can consist of."""
    entries = HfApi(endpoint=source.endpoint).list_repo_tree(source.repo, revision=commit)
    files = [entry for entry in entries if isinstance(entry, RepoFile) and _is_wanted(entry.path)]
    return [
        RemoteFile(entry.path, entry.size, entry.blob_id if entry.lfs is None else entry.lfs.sha256) for entry in files
    ]


def _check_space(source: _Source, needed: int) -> None:
    folder = next(path for path in (source.cache, *source.cache.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"the download needs {needed / 1e6:,.0f} MB, the disk has {free / 1e6:,.0f} MB left",
            given=source.repo,
            fix=f"free some space in {source.cache}, or have the cache elsewhere (HF_HOME)",
        )


def _patterns(source: _Source) -> dict[str, list[str]]:
    return {"allow_patterns": _FILES, "ignore_patterns": [*_SUBFOLDERS, *_unneeded_shards(source)]}


def _unneeded_shards(source: _Source) -> set[str]:
    """Shards of nothing but towers, by the index in the cache."""
    index = try_to_load_from_cache(source.repo, INDEX, cache_dir=source.cache, revision=source.revision)
    return tower_files(Path(index)) if isinstance(index, str) else set()


def _is_wanted(path: str) -> bool:
    return "/" not in path and any(fnmatch(path, pattern) for pattern in _FILES)


def _wanted(source: _Source) -> list[str]:
    """The files that are needed of the cached snapshot, by the repository's listing beside it."""
    unneeded = _unneeded_shards(source)
    listed = [file.path for file in get_cached_repo_tree(**source.place)]
    return [path for path in listed if _is_wanted(path) and path not in unneeded]


def _incomplete(error: IncompleteSnapshotError, source: _Source) -> UserError:
    """Names what the cached snapshot lacks."""
    wanted = _wanted(source)
    missing = [path for path in wanted if not (Path(error.snapshot_path) / path).exists()]
    reason = None if error.__cause__ is None else explain(error.__cause__, source.repo, source.revision).problem
    return UserError(
        f"the copy of {source.repo} in the cache is incomplete, {len(missing)} of {len(wanted)} files are missing: "
        + ", ".join(missing[:5])
        + (", …" if len(missing) > 5 else ""),
        given=reason,
        fix="connect to the hub and run it again: only they are downloaded",
    )


def _check(folder: Path, repo: str) -> None:
    """A cache filled by an older client has no listing, so look for what every checkpoint has."""
    if not (folder / "config.json").exists():
        raise UserError(
            "the repository, or its copy in the cache, has no config.json",
            given=repo,
            fix="check the name, and run it again with a connection to the hub",
        )
    weight_files(folder)
