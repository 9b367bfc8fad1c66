"""Whether a drafter belongs to a target, told from their configurations and tokenizers before weights are read."""

import filecmp
from pathlib import Path

from mtp_mlx.errors import UserError
from mtp_mlx.models.config import SLIDING, DecoderConfig
from mtp_mlx.models.gemma4_config import AssistantConfig
from mtp_weights.json_file import read_object
from mtp_weights.pairs import pair_of


def check_pair(target: DecoderConfig, drafter: AssistantConfig) -> None:
    """Checks that `drafter` can read what `target` offers: its hidden state, vocabulary, keys and values.

    Raises:
        UserError: it cannot; names the drafter that can, where there is an official one.
    """
    for what, wanted, given in _requirements(target, drafter):
        if wanted != given:
            right = pair_of(target.model_type, target.hidden_size)
            raise UserError(
                f"wrong pair: the target has {what} {wanted}, the drafter was trained for {given}",
                fix=f"use {right.drafter}" if right else "use the drafter that was trained on this target",
            )


def check_standalone(target: DecoderConfig, drafter: DecoderConfig) -> None:
    """Checks that a model which drafts by itself has the target's vocabulary, and is smaller.

    Raises:
        UserError: it has another one, or costs as much as what it is to save.
    """
    if target.vocab_size != drafter.vocab_size:
        raise UserError(
            f"wrong pair: the target has vocabulary size {target.vocab_size}, the drafter {drafter.vocab_size}",
            fix="use a drafter of the target's family",
        )
    sizes = [len(config.layers) * config.hidden_size for config in (target, drafter)]
    if sizes[1] >= sizes[0]:
        raise UserError(
            "a model that drafts by itself must be smaller than its target",
            given=" and ".join(f"{len(c.layers)} layers of {c.hidden_size}" for c in (target, drafter)),
            fix="use a smaller one, or an MTP drafter",
        )


def _requirements(target: DecoderConfig, drafter: AssistantConfig):
    """Pairs of what the target has and what the drafter expects, with a name for each."""
    types = {layer.layer_type for layer in drafter.text.layers}
    yield "hidden size", target.hidden_size, drafter.backbone_hidden_size
    yield "vocabulary size", target.vocab_size, drafter.text.vocab_size
    yield "attention layers of", *(_listed(kinds) for kinds in (types & set(target.kv_types), types))
    if SLIDING in types:
        yield "sliding window", target.sliding_window, drafter.text.sliding_window
    for layer in drafter.text.layers:
        kind = layer.layer_type.replace("_", " ")
        owner = target.layers[target.last_owner(layer.layer_type)]
        yield f"head dimension in {kind}", owner.head_dim, layer.head_dim
        yield f"key-value heads in {kind}", owner.num_key_value_heads, layer.num_key_value_heads


def _listed(kinds: set[str]) -> str:
    return " and ".join(sorted(kinds)) or "another kind"


def check_tokenizers(target: Path, drafter: Path) -> None:
    """Checks, where both folders have a tokenizer, that ids mean the same in both.

    Raises:
        UserError: a token has another id, or a tokenizer.json cannot be read.
    """
    files = [folder / "tokenizer.json" for folder in (target, drafter)]
    if not all(file.exists() for file in files):
        return
    if filecmp.cmp(*files, shallow=False):
        return
    vocabularies = [read_object(file).get("model", {}).get("vocab") for file in files]
    if vocabularies[0] != vocabularies[1]:
        raise UserError(
            "wrong pair: target and drafter have different tokenizers",
            given=f"{target} and {drafter}",
            fix="use the drafter that was trained on this target",
        )
