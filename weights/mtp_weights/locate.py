"""From what a user names to a folder: a local path, the bundled demo pair, or a repository on the hub."""

import os
from pathlib import Path

from mtp_weights.errors import MisuseError, UserError
from mtp_weights.hub import download

DEMO_TARGET, DEMO_DRAFTER = "demo", "demo-drafter"
_BUNDLED = {DEMO_TARGET: "target", DEMO_DRAFTER: "drafter"}


def resolve(name: str, revision: str | None = None) -> Path:
    """The checkpoint folder that `name` stands for; a hub repository is downloaded, or taken from the cache.

    Args:
        name: a local folder, "demo", "demo-drafter", or a repository id owner/name. A local folder goes before
            a repository of the same name.
        revision: branch, tag or commit of a repository; None for its main branch.

    Raises:
        UserError: nothing is there, or the download failed; the message says why.
    """
    path = os.path.expanduser(name)
    if name in _BUNDLED or os.path.isdir(path):
        if revision is not None:
            raise MisuseError(
                "a local folder has no revisions", given=f"{name} at {revision}", fix="leave the revision out"
            )
        return bundled_folder(name) if name in _BUNDLED else Path(path)
    if os.path.exists(path):
        raise UserError("a checkpoint is a folder, not a file", given=name, fix="name the folder it is in")
    if _looks_like_path(name):
        raise UserError("no such folder", given=name, fix="check the path")
    if name.count("/") != 1:
        raise UserError(
            "neither a local folder nor a repository id",
            given=repr(name),
            fix="a repository is named owner/name, e.g. google/gemma-4-E2B-it",
        )
    return download(name, revision)


def bundled_folder(name: str) -> Path:
    """The folder of the demo target or the demo drafter, which the package brings."""
    return Path(__file__).parent / "demo" / _BUNDLED[name]


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1 or "\\" in name
