"""Prompt caches as files: what one run has processed, the next one can go on from.

A file holds the token ids, the keys and values of them, and the places the rings can go back to. It names the model by
a fingerprint of its weights: keys and values of another one would look right and be wrong.
"""

import hashlib
import json
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from mtp_mlx.errors import UserError
from mtp_mlx.kv_cache import Checkpoint, LayerCache
from mtp_mlx.load import AnyTarget
from mtp_mlx.models.target import Target
from mtp_mlx.prompt_cache import PromptCache
from mtp_weights.atomic_file import write_atomically

FORMAT = "mtp prompt cache 1"

_AGAIN = "delete it, and it is made anew"


def save_prompt_cache(path: str | Path, cache: PromptCache) -> None:
    """Writes `cache` as a safetensors file, in one go: an older file stays until the new one is complete.

    Raises:
        UserError: the file cannot be written.
    """
    path, kv = Path(path), cache.cache
    state = {
        "format": FORMAT,
        "model": fingerprint(cache.model),
        "max_draft_tokens": kv.max_draft_tokens,
        "written": kv.written,
        "checkpoints": [[saved.offset, saved.written] for saved in kv.checkpoints],
    }
    arrays, metadata = _arrays(cache), {"mtp": json.dumps(state)}
    try:
        write_atomically(path, lambda opened: mx.save_safetensors(opened, arrays, metadata))
    except (OSError, RuntimeError) as error:
        raise UserError("cannot write the prompt cache", given=f"{path}: {error}", fix="choose another file") from error


def load_prompt_cache(path: str | Path, model: AnyTarget) -> PromptCache:
    """The cache in a file that `save_prompt_cache` wrote.

    Raises:
        UserError: no such file, no prompt cache of ours, a damaged one, or one of another model.
    """
    cache = PromptCache(model)
    try:
        arrays, metadata = mx.load(str(path), format="safetensors", return_metadata=True)
        state = json.loads(metadata["mtp"])
        known = state["format"] == FORMAT
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise UserError("cannot read the prompt cache", given=f"{path}: {error}", fix=_AGAIN) from error
    if not known:
        raise UserError("the prompt cache has another format", given=f"{path}: {state['format']}", fix=_AGAIN)
    if state["model"] != fingerprint(cache.model):
        raise UserError("the prompt cache was made with another model", given=path, fix="give that model, or " + _AGAIN)
    try:
        _fill(cache, arrays, state)
    except (KeyError, ValueError, TypeError) as error:
        raise UserError("the prompt cache is damaged", given=f"{path}: {error}", fix=_AGAIN) from error
    return cache


def fingerprint(model: Target) -> str:
    """A hash of the configuration and of some of each weight: all of vectors, the first row of matrices."""
    digest = hashlib.sha256(repr(model.config).encode())
    for name, array in sorted(tree_flatten(model.parameters(), destination={}).items()):
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        some = array if array.ndim == 1 else array[:1]
        digest.update(np.asarray(mx.contiguous(some).view(mx.uint8)).tobytes())
    return digest.hexdigest()


def _arrays(cache: PromptCache) -> dict[str, mx.array]:
    arrays = {"ids": mx.array(cache.ids, mx.int32)}
    for n, layer in enumerate(cache.cache if cache.ids else ()):
        rows = layer.keys.shape[2] if layer.layer.is_sliding else cache.cache.offset
        for name, array in zip(("keys", "values"), layer.state, strict=True):
            arrays[f"layers.{n}.{name}"] = mx.contiguous(array[:, :, :rows])
    for n, saved in enumerate(cache.cache.checkpoints):
        for m, ring in enumerate(saved.rings):
            for name, array in zip(("keys", "values"), ring, strict=True):
                arrays[f"checkpoints.{n}.{m}.{name}"] = array
    return arrays


def _fill(cache: PromptCache, arrays: dict[str, mx.array], state: dict) -> None:
    ids = arrays["ids"].tolist()
    if not ids:
        return
    kv = cache.model.make_cache(max_draft_tokens=state["max_draft_tokens"])
    kv.set_length(len(ids))
    kv.written = state["written"]
    for n, layer in enumerate(kv):
        rows = kv.ring if layer.layer.is_sliding else kv.offset
        layer.state = _pair(arrays, f"layers.{n}", layer, rows)
    sliding = [layer for layer in kv if layer.layer.is_sliding]
    for n, (offset, written) in enumerate(state["checkpoints"]):
        rings = [_pair(arrays, f"checkpoints.{n}.{m}", layer, kv.ring) for m, layer in enumerate(sliding)]
        kv.checkpoints.append(Checkpoint(offset, written, rings))
    kv.reserve(0)
    mx.eval(kv.arrays)
    cache.adopt(kv, ids)


def _pair(arrays: dict[str, mx.array], name: str, layer: LayerCache, rows: int) -> list[mx.array]:
    shape = (1, layer.layer.num_key_value_heads, rows, layer.layer.head_dim)
    pair = [arrays[f"{name}.{part}"] for part in ("keys", "values")]
    wrong = next((array.shape for array in pair if array.shape != shape), None)
    if wrong is not None:
        raise ValueError(f"{name} must have the shape {shape}, not {wrong}")
    return pair
