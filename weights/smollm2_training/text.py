"""What `write_text.py` wrote, as batches of anchors."""

from pathlib import Path

import numpy as np
import torch
from head import Anchors

ASSISTANT = 1
NAMES = ("tokens", "role", "top_ids", "top_lp", "hidden", "keys", "values")


class Text:
    """The rows of some files; new files in the folder can be taken in while training goes on."""

    def __init__(self, folder: Path, held_out: str, rng: np.random.Generator):
        self.folder, self.held_out, self.rng = folder, held_out, rng
        self.files: dict[str, dict[str, np.ndarray]] = {}

    def __len__(self) -> int:
        return sum(file["tokens"].size for file in self.files.values())

    def refresh(self) -> None:
        """Reads the files that were not there before."""
        for path in sorted(self.folder.glob("s*.npz")):
            if path.name not in self.files and path.stem != self.held_out:
                self.files[path.name] = read(path)

    def usage(self, vocab: int) -> np.ndarray:
        """How often each id is the target's choice [V]."""
        counts = np.zeros(vocab, np.int64)
        for file in self.files.values():
            counts += np.bincount(file["top_ids"][..., 0].ravel(), minlength=vocab)
        return counts

    def batch(self, rows: int, anchors: int, steps: int) -> Anchors:
        """`rows` random rows of one file."""
        file = self.some_file()
        index = self.rng.choice(len(file["tokens"]), rows, replace=False)
        return anchors_of(file, index, anchors, steps, self.rng)

    def some_file(self) -> dict[str, np.ndarray]:
        files = list(self.files.values())
        return files[self.rng.integers(len(files))]


def read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in (*NAMES, "temp")}


def anchors_of(file: dict, index: np.ndarray, count: int, steps: int, rng: np.random.Generator) -> Anchors:
    """`count` places of each of the rows at `index`, in replies where there are enough of them."""
    length = file["tokens"].shape[1]
    place = np.stack([choose_places(file["role"][i], count, length - steps - 1, rng) for i in index])
    ahead = place[..., None] + 1 + np.arange(steps)
    rows = index[:, None]
    take = lambda name: torch.from_numpy(file[name][rows, place])  # noqa: E731
    follow = lambda name: torch.from_numpy(file[name][rows[..., None], ahead])  # noqa: E731
    counts = follow("role") == ASSISTANT
    counts[:, :, 0] = True
    return Anchors(
        place=torch.from_numpy(place),
        hidden=take("hidden").float(),
        tokens=follow("tokens").long(),
        top_ids=torch.from_numpy(file["top_ids"][rows[..., None], ahead].astype(np.int64)),
        top_probs=follow("top_lp").float().exp(),
        counts=counts.cumprod(-1).bool(),
        keys=torch.from_numpy(file["keys"][index]).float(),
        values=torch.from_numpy(file["values"][index]).float(),
    )


def choose_places(role: np.ndarray, count: int, end: int, rng: np.random.Generator) -> np.ndarray:
    """Sorted places whose next token stands in a reply; others where there are too few of them."""
    replies = np.flatnonzero(role[1 : end + 1] == ASSISTANT)
    if len(replies) < count:
        others = np.setdiff1d(np.arange(end), replies)
        replies = np.concatenate([replies, rng.choice(others, count - len(replies), replace=False)])
    return np.sort(rng.choice(replies, count, replace=False))
