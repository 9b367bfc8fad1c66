"""From what a user names to a folder: a local path, the bundled demo pair, or a repository on the hub."""

import os
from pathlib import Path

from mtp_weights.errors import MisuseError, UserError
from mtp_weights.hub import download
from mtp_weights.links import check_links
from mtp_weights.pairs import DEMO_DRAFTER, DEMO_TARGET, bundled_folder, repository_of

_BUNDLED = (DEMO_TARGET, DEMO_DRAFTER)


def resolve(name: str, revision: str | None = None) -> Path:
    """The checkpoint folder that `name` stands for; a hub repository is downloaded, or taken from the cache.

    Args:
        name: a local folder, "demo", "demo-drafter", a short name such as "e4b-4bit", or a repository id owner/name.
            A local folder goes before a repository of the same name.
        revision: branch, tag or commit of a repository; None for its main branch.

    Raises:
        UserError: nothing is there, a file in it is a link that leads out of it, or the download failed; the message
            says which.
    """
    folder = _folder(name, revision)
    check_links(folder)
    return folder


def is_local(name: str) -> bool:
    """Whether `name` stands for something on this machine: a folder, a path, or the demo pair."""
    return name in _BUNDLED or os.path.exists(os.path.expanduser(name)) or _looks_like_path(name)


def repository(name: str) -> str:
    """The hub repository that `name` stands for: a short name (see `pairs.py`), or an id owner/name.

    Raises:
        UserError: it is neither.
    """
    if name.count("/") == 1:
        return name
    found = repository_of(name)
    if found is None:
        raise UserError(
            "neither a local folder nor a repository id",
            given=repr(name),
            fix="a repository is named owner/name, e.g. google/gemma-4-E2B-it; `mtp models` lists short names",
        )
    return found


def _folder(name: str, revision: str | None) -> Path:
    path = os.path.expanduser(name)
    if name in _BUNDLED or os.path.isdir(path):
        if revision is not None:
            raise MisuseError(
                "a local folder has no revisions", given=f"{name} at {revision}", fix="leave the revision out"
            )
        return bundled_folder(name) if name in _BUNDLED else Path(path)
    if os.path.exists(path):
        fix = f"mtp convert --hf-path {name} makes one" if path.endswith(".gguf") else "name the folder it is in"
        raise UserError("a checkpoint is a folder, not a file", given=name, fix=fix)
    if _looks_like_path(name):
        raise UserError("no such folder", given=name, fix="check the path")
    return download(repository(name), revision)


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1 or "\\" in name
