"""Files that are written whole or not at all, and stay through a power cut."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


def write_atomically(file: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Writes a new file beside `file` and puts it in its place once it is complete and on the disk.

    Args:
        write: called with the new file, open for writing.

    Raises:
        OSError: it could not be written; what `file` held is untouched.
    """
    new = file.with_name(f".{file.name}.{os.getpid()}.new")  # two processes may write one file
    try:
        with new.open("wb") as opened:
            write(opened)
            sync(opened)
        os.replace(new, file)
        _sync_folder(file.parent)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def sync(opened: BinaryIO) -> None:
    """Waits until what was written is on the disk."""
    opened.flush()
    os.fsync(opened.fileno())


def _sync_folder(folder: Path) -> None:
    """The new name, too. Some file systems have no such thing for folders."""
    descriptor = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):
        os.fsync(descriptor)
    os.close(descriptor)
