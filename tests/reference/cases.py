"""The goldens, each beside the tiny target and the drafters that it belongs to."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx

from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_weights.pairs import official_config
from tests.tiny import build_drafter, build_target, drafter_config, target_config

FOLDER = Path(__file__).parent
HEADS = ("clustered", "full")
TOLERANCE = 1e-4  # of float32 logits up to 15; transformers in float64 differs from itself by up to 2e-5


@dataclass(frozen=True)
class Case:
    """One architecture: its name, its target, and what transformers computes with it."""

    name: str
    target: Gemma4
    golden: dict[str, mx.array]

    @property
    def ids(self) -> list[int]:
        return self.golden["ids"].tolist()

    def drafter(self, head: str, draft_position: str = "next") -> Gemma4Assistant:
        config = drafter_config(target_config(self.name), clustered=head == "clustered")
        return build_drafter(config, draft_position=draft_position)


@cache
def case(name: str) -> Case:
    return Case(name, build_target(target_config(name)), mx.load(str(FOLDER / "goldens" / f"{name}.safetensors")))


def real_config(name: str) -> dict[str, Any]:
    """config.json of a real model, e.g. "gemma-4-e2b-assistant"."""
    return official_config(name)


def saved_config(name: str) -> dict[str, Any]:
    """config.json of a tiny model as transformers writes it, e.g. "e2b" or "e2b-clustered"."""
    return json.loads((FOLDER / "saved" / f"{name}.json").read_text())


def gap(a: mx.array, b: mx.array) -> float:
    """Largest absolute difference of two arrays of the same shape."""
    assert a.shape == b.shape
    return mx.abs(a - b).max().item()
