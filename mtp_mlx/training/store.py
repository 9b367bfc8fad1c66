"""The target's view of all rows, on disk: written once, read a few rows at a time, re-used by the next run.

A folder with one file a kind of array, row after row, and `manifest.json`, which says what they were made from, their
shapes, and how many rows are there. A run that was stopped on the way goes on with the next row.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from mtp_mlx.errors import UserError
from mtp_mlx.memory import gigabytes
from mtp_mlx.models.target import Target
from mtp_mlx.training.observe import view
from mtp_mlx.training.rows import Rows
from mtp_weights.atomic_file import sync, write_atomically

MANIFEST = "manifest.json"
ROWS_AT_A_TIME = 4
RESERVE = 200_000_000  # bytes of the disk that are left free, for checkpoints and everything else

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Observations:
    """Rows of text, and the target's view of them (see `observe.View`), by name [N, …].

    Attributes:
        stop_ids: tokens that end a document or a reply: nothing is drafted after them.
    """

    rows: Rows
    arrays: Arrays
    stop_ids: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: np.ndarray | slice) -> "Observations":
        """Some of the rows."""
        return Observations(self.rows.take(index), {n: a[index] for n, a in self.arrays.items()}, self.stop_ids)

    @property
    def kinds(self) -> list[str]:
        """The layer types whose keys and values are there."""
        return sorted(name.removesuffix(".keys") for name in self.arrays if name.endswith(".keys"))


def observe(target: Target, rows: Rows, *, top_k: int = 1, follow: int = 0, stop_ids=()) -> Observations:
    """The target's view of `rows`, kept in memory; arguments as for `observe.view`."""
    parts = [_view(target, rows, start, top_k, follow) for start in range(0, len(rows), ROWS_AT_A_TIME)]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Observations(rows, arrays, tuple(stop_ids))


def bytes_a_row(target: Target, length: int, *, top_k: int, follow: int) -> int:
    """What one row of `length` tokens takes on the disk."""
    config = target.config
    read = [config.layers[config.last_owner(kind)] for kind in config.kv_types]
    numbers = config.hidden_size + sum(2 * layer.num_key_value_heads * layer.head_dim for layer in read)
    return length * (2 * numbers + (4 + 2) * top_k * (1 + follow))


class Store:
    """One folder of observations.

    Args:
        folder: created where missing.
        key: names what the observations are made from: target, text and settings. Another key starts anew.
    """

    def __init__(self, folder: Path, key: str, rows: Rows):
        self.folder, self.key, self.rows = folder, key, rows

    @property
    def done(self) -> int:
        """How many rows are there already."""
        try:
            manifest = json.loads((self.folder / MANIFEST).read_bytes())
        except (OSError, ValueError):
            return 0
        return manifest["done"] if manifest.get("key") == self.key else 0

    def open(self, stop_ids=()) -> Observations:
        """Maps the arrays; nothing is read yet."""
        arrays = json.loads((self.folder / MANIFEST).read_bytes())["arrays"]
        mapped = {
            name: np.memmap(self.folder / f"{name}.bin", dtype, "r", shape=(len(self.rows), *shape))
            for name, (dtype, shape) in arrays.items()
        }
        return Observations(self.rows, mapped, tuple(stop_ids))

    def fill(self, target: Target, *, top_k: int, follow: int, progress: Callable[[int, int], None]) -> None:
        """Lets the target see the rows that are not there yet. May be interrupted at any time.

        Args:
            progress: called with (rows done, rows in all).

        Raises:
            UserError: the disk has no room for it, or the folder cannot be written.
        """
        done, total = self.done, len(self.rows)
        if done == total:
            return
        try:
            self._check_room(
                bytes_a_row(target, self.rows.tokens.shape[1], top_k=top_k, follow=follow) * (total - done)
            )
            for start in range(done, total, ROWS_AT_A_TIME):
                self._write(start, _view(target, self.rows, start, top_k, follow))
                progress(min(start + ROWS_AT_A_TIME, total), total)
        except OSError as error:
            raise UserError(
                "cannot write what the target makes of the text",
                given=f"{self.folder}: {error.strerror}",
                fix="make room, or name a folder elsewhere with --cache-dir; finished rows are kept",
            ) from error

    def _check_room(self, need: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if need + RESERVE > free:
            raise UserError(
                f"what the target makes of the text takes {gigabytes(need)} on the disk",
                given=f"{self.folder}, {gigabytes(free)} free",
                fix="make room, name a folder elsewhere with --cache-dir, or train on fewer rows (--iters)",
            )

    def _write(self, start: int, arrays: Arrays) -> None:
        """Through files, not through mapped memory, where a full disk would be a signal instead of an error."""
        for name, part in arrays.items():
            with (self.folder / f"{name}.bin").open("r+b" if start else "wb") as file:
                file.seek(start * part[0].nbytes)
                file.write(part.tobytes())
                sync(file)
        done = start + len(next(iter(arrays.values())))
        described = {name: [str(part.dtype), part.shape[1:]] for name, part in arrays.items()}
        manifest = {"key": self.key, "rows": len(self.rows), "done": done, "arrays": described}
        write_atomically(self.folder / MANIFEST, lambda file: file.write(json.dumps(manifest).encode()))


def _view(target: Target, rows: Rows, start: int, top_k: int, follow: int) -> Arrays:
    part = rows.take(slice(start, start + ROWS_AT_A_TIME))
    seen = view(target, mx.array(part.tokens), mx.array(part.segments), top_k=top_k, follow=follow)
    return {name: np.array(array) for name, array in seen.arrays().items()}
