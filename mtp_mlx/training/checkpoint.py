"""A training run's files: the drafter for decoding, and the checkpoint that training goes on from.

The checkpoint is one file of float32 tensors, with the settings, the step and the evaluations in its metadata. It is
replaced as a whole: when the disk is full or the power goes, the one before is still there.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import mlx.core as mx
from mlx.utils import tree_flatten

from mtp_mlx.errors import UserError
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant, to_vocabulary_order
from mtp_mlx.training.trainer import Trainer
from mtp_weights.atomic_file import write_atomically
from mtp_weights.safetensors_file import read_header

CHECKPOINT = "training.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """Where a run was.

    Attributes:
        state: of the trainer.
        steps: done.
        identity: what decides the outcome of the run, by name.
        history: evaluations so far.
    """

    state: dict[str, mx.array]
    steps: int
    identity: dict[str, Any]
    history: list[dict[str, Any]]


def write_checkpoint(folder: Path, trainer: Trainer, identity: dict[str, Any], history: list[dict[str, Any]]) -> None:
    """Writes the state of `trainer` to `folder`; the other arguments as in `Checkpoint`.

    Raises:
        UserError: it cannot be written; an earlier checkpoint is left as it was.
    """
    facts = {"steps": trainer.steps, "identity": identity, "history": history}
    metadata = {name: json.dumps(value) for name, value in facts.items()}
    _write(folder / CHECKPOINT, trainer.state(), metadata)


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint in `folder`, or None where there is none.

    Raises:
        UserError: the file is damaged.
    """
    file = folder / CHECKPOINT
    if not file.exists():
        return None
    read_header(file)
    state, metadata = mx.load(str(file), return_metadata=True)
    try:
        return Checkpoint(state, *(json.loads(metadata[name]) for name in ("steps", "identity", "history")))
    except (KeyError, ValueError) as error:
        fix = "remove it, or name another --output"
        raise UserError("not a checkpoint of mtp train", given=file, fix=fix) from error


def save_drafter(
    drafter: Gemma4Assistant, config: dict[str, Any], folder: Path, extras: dict[str, bytes] | None = None
) -> None:
    """Writes `drafter` to `folder` so that `load_drafter` reads it: bfloat16, in the layout of Google's.

    Args:
        config: the config.json it was made from.
        folder: created where missing; files of an earlier checkpoint are replaced, each as a whole.
        extras: further files by name, such as a tokenizer.

    Raises:
        UserError: it cannot be written.
    """
    weights = to_vocabulary_order(tree_flatten(drafter.parameters(), destination={}))
    weights = {name: _stored(array) for name, array in weights.items()}
    config_text = json.dumps({**config, "dtype": "bfloat16"}, indent=1) + "\n"
    _write(folder / "model.safetensors", weights, {"format": "mlx"})
    for name, content in {"config.json": config_text.encode(), **(extras or {})}.items():
        _guarded(folder / name, lambda file, content=content: file.write(content))


def _stored(array: mx.array) -> mx.array:
    """bfloat16, and int64 for the token ordering, as in Google's checkpoints."""
    return array.astype(mx.bfloat16 if mx.issubdtype(array.dtype, mx.floating) else mx.int64)


def _write(file: Path, arrays: dict[str, mx.array], metadata: dict[str, str]) -> None:
    _guarded(file, lambda opened: mx.save_safetensors(opened, arrays, metadata))


def _guarded(file: Path, write: Callable[[BinaryIO], Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, write)
    except OSError as error:
        raise UserError(
            f"cannot write {file.name}: {error.strerror}",
            given=file.parent,
            fix="make room or name a folder that can be written; what was saved before is intact",
        ) from error
