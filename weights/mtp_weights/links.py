"""Symbolic links in a checkpoint folder: only those that the hub's cache makes are followed.

A folder that somebody passed on can hold a link to any file of the machine it is opened on, which a conversion would
then copy into its output.
"""

from pathlib import Path

from mtp_weights.errors import UserError


def check_links(folder: Path) -> None:
    """Checks that no file in `folder` lies outside of it.

    Raises:
        UserError: one does, by a symbolic link.
    """
    root = folder.resolve()
    allowed = [root, *_cache_of(root)]
    for entry in folder.iterdir():
        if entry.is_symlink() and not any(entry.resolve().is_relative_to(place) for place in allowed):
            raise UserError(
                "a file of the checkpoint is a link that leads out of its folder",
                given=f"{entry} -> {entry.readlink()}",
                fix="copy the file itself into the folder",
            )


def _cache_of(root: Path) -> list[Path]:
    """The hub cache around a snapshot, whose files are links to blobs elsewhere in the cache; [] for other folders."""
    is_snapshot = root.parent.name == "snapshots" and root.parents[1].name.startswith("models--")
    return [root.parents[2]] if is_snapshot else []
