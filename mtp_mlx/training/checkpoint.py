"""Writes a drafter in the layout of Google's: config.json and model.safetensors in bfloat16."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from mtp_mlx.models.gemma4_assistant import Gemma4Assistant, to_vocabulary_order


def save_drafter(drafter: Gemma4Assistant, config: dict[str, Any], folder: Path) -> None:
    """Writes `drafter` to `folder` so that `load_drafter` reads it.

    Args:
        config: the config.json it was made from.
        folder: created where missing; files of an earlier checkpoint are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = to_vocabulary_order(tree_flatten(drafter.parameters(), destination={}))
    weights = {name: _stored(array) for name, array in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")


def _stored(array: mx.array) -> mx.array:
    """bfloat16, and int64 for the token ordering, as in Google's checkpoints."""
    return array.astype(mx.bfloat16 if mx.issubdtype(array.dtype, mx.floating) else mx.int64)
