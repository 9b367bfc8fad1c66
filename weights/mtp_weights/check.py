"""Checks the files of a checkpoint from end to end: whole, unaltered, and without a number that is none."""

from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx

from mtp_weights.errors import UserError
from mtp_weights.read import read_weights
from mtp_weights.transfer import checksum_of

Progress = Callable[[int, int], None]


def check_checksums(folder: Path, progress: Progress = lambda done, total: None) -> int:
    """Compares files with the checksums that the hub gave for them.

    Args:
        progress: called with (bytes read, bytes in all).

    Returns:
        How many checksums were known: those of a snapshot in the hub's cache, where each blob is named by its own; 0
        for other folders.

    Raises:
        UserError: a file is not what was downloaded.
    """
    blobs = list(_blobs(folder))
    total, done = sum(path.stat().st_size for path, _ in blobs), 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    for path, blob in blobs:
        if checksum_of(path, blob, add) != blob:
            raise UserError(
                f"{path.name} is not the file that was downloaded: its checksum is another",
                given=folder,
                fix=f"remove {path.resolve()} and pull the repository again",
            )
    return len(blobs)


def check_numbers(folder: Path, progress: Progress = lambda done, total: None) -> int:
    """Looks for NaN and infinities in every tensor, one tensor at a time.

    Args:
        progress: called with (tensors read, tensors in all).

    Returns:
        How many tensors there are.

    Raises:
        UserError: there are some, or the files are damaged.
    """
    weights = read_weights(folder)
    names = list(weights)
    for done, name in enumerate(names, start=1):
        array = weights.pop(name)
        if mx.issubdtype(array.dtype, mx.floating) and not mx.isfinite(array).all().item():
            raise UserError(
                f"{name} holds numbers that are none (NaN or infinite)", given=folder, fix="download it again"
            )
        progress(done, len(names))
    return len(names)


def _blobs(folder: Path) -> Iterator[tuple[Path, str]]:
    """Files of a snapshot with the names of their blobs, which are their checksums."""
    for path in sorted(folder.iterdir()):
        target = path.resolve()
        if path.is_symlink() and target.parent.name == "blobs" and len(target.name) in (40, 64):
            yield path, target.name
