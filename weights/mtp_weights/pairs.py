"""Which drafter belongs to which target, and the short names of both.

A drafter reads its target's hidden states, keys and values, so it fits one backbone. The hidden size tells the
official ones apart, and holds for fine-tunes and conversions of any name. `pairs.json` is the list, after
Google's model cards; targets trained for quantization (QAT) have drafters of their own. `configs/` has the official
config.json files, for what can be said of a checkpoint before it is downloaded.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtp_weights.errors import UserError

DEMO_TARGET, DEMO_DRAFTER = "demo", "demo-drafter"
_BUNDLED = {DEMO_TARGET: "target", DEMO_DRAFTER: "drafter"}
_FAMILY = "gemma4"  # what the model types of all these targets begin with
_QAT = re.compile(r"gemma-4-[^/]*-qat\b", re.IGNORECASE)
# What mlx-community converts the targets to, by the end of the repository's name.
CONVERSIONS = ("4bit", "5bit", "6bit", "8bit", "mxfp4", "nvfp4", "mxfp8", "bf16", "qat-4bit", "qat-8bit")
_ALIASES = {"26b": "26b-a4b"}


@dataclass(frozen=True)
class Pair:
    """One model size: its official target and drafter, and where the conversions of the target are.

    Attributes:
        size: short name, e.g. "e4b".
        hidden_size: of the target; tells which pair a checkpoint belongs to.
        community: what the names of mlx-community's conversions begin with.
        config: name of the target's file in `configs/`; the drafter's ends in "-assistant".
    """

    size: str
    hidden_size: int
    target: str
    drafter: str
    qat_target: str
    qat_drafter: str
    community: str
    config: str

    @property
    def names(self) -> dict[str, str]:
        """Short name -> repository, of every target and drafter of this size."""
        conversions = {f"{self.size}-{end}": f"{self.community}-{end}" for end in CONVERSIONS}
        drafters = {f"{self.size}-assistant": self.drafter, f"{self.size}-qat-assistant": self.qat_drafter}
        return {self.size: self.target, **conversions, f"{self.size}-qat": self.qat_target, **drafters}


PAIRS = [Pair(**pair) for pair in json.loads(Path(__file__).with_name("pairs.json").read_bytes())]
_BY_HIDDEN_SIZE = {pair.hidden_size: pair for pair in PAIRS}
_REPOSITORIES = {name: repository for pair in PAIRS for name, repository in pair.names.items()}


@dataclass(frozen=True)
class DrafterChoice:
    """A drafter that was found for a target, and in words why it is this one."""

    name: str
    reason: str


def repository_of(name: str) -> str | None:
    """The repository that a short name such as "e4b" or "31b-4bit" stands for, or None where it is no short name."""
    short = name.lower()
    size = next((alias for alias in _ALIASES if short == alias or short.startswith(f"{alias}-")), None)
    if size is not None and short not in _REPOSITORIES:
        short = _ALIASES[size] + short.removeprefix(size)
    return _REPOSITORIES.get(short)


def pair_of(model_type: str, hidden_size: int) -> Pair | None:
    """The pair that a target of this type and hidden size belongs to."""
    return _BY_HIDDEN_SIZE.get(hidden_size) if model_type.startswith(_FAMILY) else None


def choose_drafter(target_name: str, model_type: str, hidden_size: int) -> DrafterChoice:
    """The drafter for a target; arguments as those of `known_drafter`.

    Raises:
        UserError: no drafter is known for this target.
    """
    choice = known_drafter(target_name, model_type, hidden_size)
    if choice is None:
        raise UserError(
            f"no drafter is known for a {model_type} target of hidden size {hidden_size}",
            given=target_name,
            fix="name one as the draft model, or run without a drafter",
        )
    return choice


def known_drafter(target_name: str, model_type: str, hidden_size: int) -> DrafterChoice | None:
    """The drafter for a target, None where none is known.

    Args:
        target_name: as the user or `resolve` gave it: "demo", a short name, a repository id, or a folder.
        model_type, hidden_size: of the target's text config.
    """
    if model_type.startswith(_FAMILY) and hidden_size == _demo_hidden_size():
        return DrafterChoice(DEMO_DRAFTER, "it was trained with the demo target")
    pair = pair_of(model_type, hidden_size)
    if pair is None:
        return None
    backbone = f"a target of hidden size {hidden_size} is a Gemma 4 {pair.size.upper()}"
    if _QAT.search(repository_of(target_name) or target_name):
        return DrafterChoice(pair.qat_drafter, f"{backbone}, and its name says QAT")
    return DrafterChoice(pair.drafter, backbone)


def official_config(name: str) -> dict[str, Any]:
    """config.json (its text part) of an official checkpoint, e.g. "gemma-4-e2b" or "gemma-4-e2b-assistant"."""
    return json.loads((Path(__file__).parent / "configs" / f"{name}.json").read_bytes())


def bundled_folder(name: str) -> Path:
    """The folder of the demo target or the demo drafter, which the package brings."""
    return Path(__file__).parent / "demo" / _BUNDLED[name]


def _demo_hidden_size() -> int:
    return json.loads((bundled_folder(DEMO_TARGET) / "config.json").read_bytes())["hidden_size"]
