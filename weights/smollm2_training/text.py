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

    def batch(self, rows: int, anchors: tuple[int, int], steps: int) -> Anchors:
        """`rows` random rows of one file; see `anchors_of`."""
        file = self.some_file()
        index = self.rng.choice(len(file["tokens"]), rows, replace=False)
        return anchors_of(file, index, anchors, steps, self.rng)

    def some_file(self) -> dict[str, np.ndarray]:
        files = list(self.files.values())
        return files[self.rng.integers(len(files))]


def read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in (*NAMES, "temp")}


def anchors_of(file: dict, index: np.ndarray, counts: tuple[int, int], steps: int, rng: np.random.Generator) -> Anchors:
    """Places of each of the rows at `index`: so many in replies, where there are enough of them, and so many others."""
    length = file["tokens"].shape[1]
    place = np.stack([choose_places(file["role"][i], counts, length - steps - 1, rng) for i in index])
    ahead = place[..., None] + 1 + np.arange(steps)
    rows = index[:, None]
    take = lambda name: torch.from_numpy(file[name][rows, place])  # noqa: E731
    follow = lambda name: torch.from_numpy(file[name][rows[..., None], ahead])  # noqa: E731
    roles = follow("role")
    same_turn = (roles == roles[:, :, :1]).cumprod(-1).bool()
    return Anchors(
        place=torch.from_numpy(place),
        hidden=take("hidden").float(),
        tokens=follow("tokens").long(),
        states=follow("hidden").float(),
        top_ids=torch.from_numpy(file["top_ids"][rows[..., None], ahead].astype(np.int64)),
        top_probs=follow("top_lp").float().exp(),
        counts=same_turn,
        keys=torch.from_numpy(file["keys"][index]).float(),
        values=torch.from_numpy(file["values"][index]).float(),
    )


def choose_places(role: np.ndarray, counts: tuple[int, int], end: int, rng: np.random.Generator) -> np.ndarray:
    """Sorted places before `end`: `counts[0]` whose next token stands in a reply, `counts[1]` others."""
    in_reply = role[1 : end + 1] == ASSISTANT
    replies, others = (rng.permutation(np.flatnonzero(which)) for which in (in_reply, ~in_reply))
    chosen = np.concatenate([replies[: counts[0]], others[: counts[1]]])
    missing = sum(counts) - len(chosen)
    rest = np.setdiff1d(np.arange(end), chosen)
    return np.sort(np.concatenate([chosen, rng.choice(rest, missing, replace=False)]))
