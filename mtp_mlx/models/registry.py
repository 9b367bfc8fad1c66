"""Which family a config.json belongs to: how it is read, and what it becomes."""

from dataclasses import dataclass
from typing import Any

from mtp_mlx.models import gemma4_config, llama_config
from mtp_mlx.models.config import DecoderConfig
from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_config import DRAFTER_TYPES, AssistantConfig, TextConfig
from mtp_mlx.models.llama import Llama
from mtp_mlx.models.llama_config import LlamaConfig
from mtp_mlx.models.target import Target
from mtp_weights.errors import UserError


@dataclass(frozen=True)
class _Family:
    model_types: tuple[str, ...]
    config: type[DecoderConfig]
    target: type[Target]


_FAMILIES = (
    _Family(gemma4_config.TARGET_TYPES, TextConfig, Gemma4),
    _Family(llama_config.TARGET_TYPES, LlamaConfig, Llama),
)
# Families whose small models may draft by themselves. Gemma 4 has MTP drafters: a target in their place is a mistake.
STANDALONE_TYPES = llama_config.TARGET_TYPES
TARGET_TYPES = tuple(name for family in _FAMILIES for name in family.model_types)


def target_config(config: dict[str, Any]) -> DecoderConfig:
    """Reads config.json of a target.

    Raises:
        UserError: not a target of a family that is known here, or a field is missing or contradicts another.
    """
    check_model_type(config, TARGET_TYPES, "target")
    family = next(family for family in _FAMILIES if config["model_type"] in family.model_types)
    return family.config.from_dict(config)


def drafter_config(config: dict[str, Any]) -> AssistantConfig:
    """Reads config.json of a drafter, whatever family its target is of.

    Raises:
        UserError: not an MTP drafter, or a field is missing or contradicts another.
    """
    check_model_type(config, DRAFTER_TYPES, "drafter")
    return AssistantConfig.from_dict(config)


def new_target(config: DecoderConfig) -> Target:
    """A target without weights; nothing is allocated until they are asked for."""
    return next(family.target for family in _FAMILIES if isinstance(config, family.config))(config)


def check_model_type(config: dict[str, Any], known: tuple[str, ...], role: str) -> None:
    """Raises a UserError unless `config["model_type"]` is one of `known`."""
    given = config.get("model_type")
    if given in known:
        return
    if given in DRAFTER_TYPES:
        fix = "this is a drafter: pass it as the draft model, beside its target"
    elif given in TARGET_TYPES:
        fix = "this is a target: pass its drafter (…-assistant) as the draft model"
    else:
        fix = f"supported model types: {', '.join(known)}"
    raise UserError(f"not a {role} that mtp can run", given=f"model_type {given!r}", fix=fix)
