"""Downloads a checkpoint from the Hugging Face hub, or finds it in the cache."""

from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import get_cached_repo_tree, snapshot_download
from huggingface_hub.errors import HFValidationError, HTTPError, IncompleteSnapshotError

from mtp_weights.errors import UserError
from mtp_weights.hub_errors import explain
from mtp_weights.shards import weight_files

_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer*"]
_SUBFOLDERS = ["*/*"]  # they hold other formats of the same weights


def download(repo: str, revision: str | None = None, *, endpoint: str | None = None, cache: Path | None = None) -> Path:
    """Fetches what is needed of a repository; files that are in the cache are not fetched again.

    Without a connection, a complete snapshot in the cache is used.

    Args:
        repo: repository id, owner/name.
        revision: branch, tag or commit; None for the main branch.
        endpoint: the hub's address; None for huggingface_hub's own setting.
        cache: the cache folder; None for huggingface_hub's own setting.

    Returns:
        The snapshot's folder.

    Raises:
        UserError: not found, not allowed, not reachable, incomplete, or no space.
    """
    try:
        folder = snapshot_download(
            repo,
            revision=revision,
            allow_patterns=_FILES,
            ignore_patterns=_SUBFOLDERS,
            endpoint=endpoint,
            cache_dir=cache,
        )
    except HFValidationError as error:
        raise UserError("not a repository id", given=repr(repo), fix="it is owner/name") from error
    except IncompleteSnapshotError as error:
        raise _incomplete(error, repo, revision, cache) from error
    # Status errors, broken connections, full disks; RuntimeError is what the client's Rust part raises.
    except (HTTPError, OSError, RuntimeError) as error:
        raise explain(error, repo, revision) from error
    _check(Path(folder), repo)
    return Path(folder)


def _incomplete(error: IncompleteSnapshotError, repo: str, revision: str | None, cache: Path | None) -> UserError:
    """Names what the cached snapshot lacks, by the repository's listing beside it."""
    listed = [file.path for file in get_cached_repo_tree(repo, revision=revision, cache_dir=cache)]
    wanted = [path for path in listed if "/" not in path and any(fnmatch(path, each) for each in _FILES)]
    missing = [path for path in wanted if not (Path(error.snapshot_path) / path).exists()]
    reason = None if error.__cause__ is None else explain(error.__cause__, repo, revision).problem
    return UserError(
        f"the copy of {repo} in the cache is incomplete, {len(missing)} of {len(wanted)} files are missing: "
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
