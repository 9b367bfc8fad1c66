"""Writes a checkpoint folder: whole, or not at all."""

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from mtp_weights.errors import UserError
from mtp_weights.shards import INDEX, SINGLE

SHARD_BYTES = 5 * 10**9  # what the hub's other checkpoints have


def write_checkpoint(
    folder: Path,
    weights: Mapping[str, mx.array] | Iterable[tuple[str, mx.array]],
    config: Mapping[str, Any],
    extra_files: Mapping[str, bytes | Path] | None = None,
    *,
    replace: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes config.json, the weights as safetensors, and further files to `folder`.

    Everything is written beside the folder first and moved there at the end, so that nobody ever reads half a
    checkpoint and a failure leaves what was there.

    Args:
        folder: a new or empty folder; with `replace` also one with a checkpoint, which is replaced as a whole.
        weights: tensor name -> array, or such pairs one after the other, of which no more than one shard is kept in
            memory. Arrays may be mapped from the very files that are replaced.
        config: content of config.json.
        extra_files: file name -> its content, or a file to copy; tokenizer files, generation_config.json and such.
        replace: whether a checkpoint in `folder` may be replaced.
        shard_bytes: weights beyond this size are split into shards of at most this size, with an index.

    Raises:
        UserError: the folder is taken, or it cannot be written.
    """
    folder = folder.resolve()
    _check_free(folder, replace)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            new = Path(scratch, "new")
            new.mkdir()
            _write_extras(new, extra_files or {})
            (new / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            _write_weights(new, weights, shard_bytes)
            _swap(new, folder, Path(scratch, "old"))
    except (OSError, RuntimeError) as error:  # RuntimeError is MLX's, when a file cannot be written
        raise UserError(
            "cannot write the checkpoint", given=f"{folder}: {error}", fix="check its permissions and the free space"
        ) from error


def _check_free(folder: Path, replace: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / "config.json").exists():  # never swap out what is no checkpoint
        raise UserError("the output folder must be new or empty", given=folder, fix="name another folder")
    if not replace:
        raise UserError("the output folder has a checkpoint", given=folder, fix="name another folder, or remove it")


def _write_extras(folder: Path, files: Mapping[str, bytes | Path]) -> None:
    for name, source in files.items():
        if isinstance(source, Path):
            shutil.copyfile(source, folder / name)
        else:
            (folder / name).write_bytes(source)


def _write_weights(
    folder: Path, weights: Mapping[str, mx.array] | Iterable[tuple[str, mx.array]], shard_bytes: int
) -> None:
    pairs = weights.items() if isinstance(weights, Mapping) else weights
    shards, total = [], 0
    for number, shard in enumerate(_shards(pairs, shard_bytes), start=1):
        _save(folder / f"{number}.safetensors", shard)
        shards.append(list(shard))
        total += sum(array.nbytes for array in shard.values())
    if len(shards) == 1:
        (folder / "1.safetensors").rename(folder / SINGLE)
        return
    weight_map = {}
    for number, names in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        (folder / f"{number}.safetensors").rename(folder / name)
        weight_map |= dict.fromkeys(names, name)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(pairs: Iterable[tuple[str, mx.array]], shard_bytes: int) -> Iterator[dict[str, mx.array]]:
    """Groups of tensors in their order, each of at most `shard_bytes` or of one larger tensor."""
    shard: dict[str, mx.array] = {}
    size = 0
    for name, array in pairs:
        if shard and size + array.nbytes > shard_bytes:
            yield shard
            shard.clear()  # the one who asked has it still: let its arrays go before the next ones come
            size = 0
        shard[name] = array
        size += array.nbytes
        del array
    yield shard


def _save(file: Path, weights: dict[str, mx.array]) -> None:
    mx.save_safetensors(str(file), weights, metadata={"format": "mlx"})


def _swap(new: Path, folder: Path, old: Path) -> None:
    """Puts `new` in the folder's place, and what was there to `old`."""
    if folder.exists():
        folder.rename(old)
    try:
        new.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
