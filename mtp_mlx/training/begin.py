"""Begins a run, or takes it up where its output folder says that it was left."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.tokenizer_utils import TokenizerWrapper

from mtp_mlx.errors import UserError
from mtp_mlx.load import load_drafter
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.gemma4_config import AssistantConfig
from mtp_mlx.models.target import Target
from mtp_mlx.training import fingerprint
from mtp_mlx.training.card import training_card
from mtp_mlx.training.checkpoint import read_checkpoint
from mtp_mlx.training.documents import Documents
from mtp_mlx.training.initialize import new_drafter
from mtp_mlx.training.prepare import Text, prepare
from mtp_mlx.training.rows import Rows
from mtp_mlx.training.run import Destination, Run
from mtp_mlx.training.settings import Settings, check_same
from mtp_mlx.training.shape import Shape, drafter_config
from mtp_mlx.training.store import Observations, Store
from mtp_weights.locate import resolve
from mtp_weights.quantization import quantization_of
from mtp_weights.read import read_config

Progress = Callable[[str, int, int], None]
CACHE = "observed"  # within the output folder, where no other is named


@dataclass(frozen=True)
class Plan:
    """What to train, on what, and where to.

    Attributes:
        documents: the text.
        output: folder of the drafter.
        settings: of the run.
        shape: of a new drafter.
        init: a drafter to go on with instead: a folder or a repository.
        adapter_path: adapters that the target has on.
        cache_dir: where the target's view of the text is kept; None for a folder within `output`.
        val_batches: most batches of validation rows; -1 for all.
        save_every, steps_per_eval: steps between savings, and between evaluations.
    """

    documents: Documents
    output: Path
    settings: Settings = field(default_factory=Settings)
    shape: Shape = field(default_factory=Shape)
    init: str | None = None
    adapter_path: Path | None = None
    cache_dir: Path | None = None
    val_batches: int = 25
    save_every: int = 100
    steps_per_eval: int = 200

    @property
    def cache(self) -> Path:
        return self.cache_dir or self.output / CACHE


@dataclass(frozen=True)
class Begun:
    """A run that is ready for its steps, the text that it is about, and how many steps were done before."""

    run: Run
    text: Text
    steps_before: int


def begin(plan: Plan, target: Target, tokenizer: TokenizerWrapper, progress: Progress) -> Begun:
    """Prepares text and drafter, lets the target see the text where it has not yet, and takes up a checkpoint.

    Args:
        progress: called with (what is being done, parts done, parts in all); may raise to stop.

    Raises:
        UserError: the text, the drafter or the folders are not what they should be, or the output folder has a run
            with other settings.
    """
    settings = plan.settings
    checkpoint = read_checkpoint(check_output(plan.output))
    of_target = target_key(target, plan.adapter_path)
    written = make_folder(plan.cache / of_target)
    text = prepare(
        plan.documents, target, tokenizer, settings, plan.val_batches, written, _named(progress, "writing text")
    )
    identity = _identity(plan, of_target, text)
    if checkpoint is not None:
        check_same(checkpoint.identity, identity, plan.output)
    config = first_config(plan, target)
    stops = tuple(sorted(tokenizer.eos_token_ids))
    parts = {"train": (text.train, settings.follow), "valid": (text.valid, settings.num_draft_tokens)}
    observed = {
        name: _observed(written / f"{name}-", target, rows, settings.top_k, follow, stops, progress)
        for name, (rows, follow) in parts.items()
    }
    drafter = first_drafter(plan, target, config, observed["train"])
    extras = _extras(plan, target, text, config)
    destination = Destination(plan.output, config, extras, identity)
    every = {"save_every": plan.save_every, "steps_per_eval": plan.steps_per_eval}
    run = Run(drafter, target, settings, **observed, destination=destination, checkpoint=checkpoint, **every)
    return Begun(run, text, 0 if checkpoint is None else checkpoint.steps)


def first_config(plan: Plan, target: Target) -> dict[str, Any]:
    """config.json of the drafter; what cannot be is refused before the target reads anything."""
    if plan.init is None:
        config = drafter_config(target.config, plan.shape)
        AssistantConfig.from_dict(config)
        return config
    config = read_config(resolve(plan.init))
    if quantization_of(config) is not None:
        raise UserError("a quantized drafter cannot be trained", given=plan.init, fix="name the one in 16 bits")
    load_drafter(plan.init, target)
    return config


def first_drafter(plan: Plan, target: Target, config: dict[str, Any], observed: Observations) -> Gemma4Assistant:
    """The drafter before its first step, in float32.

    Args:
        observed: text, by which a new drafter's clusters are chosen.
    """
    mx.random.seed(plan.settings.seed)
    if plan.init is None:
        chosen = np.bincount(observed.arrays["ids"][..., 0].ravel(), minlength=target.config.vocab_size)
        return new_drafter(target, AssistantConfig.from_dict(config), mx.array(chosen.astype(np.float32)))
    drafter = load_drafter(plan.init, target)
    drafter.update(tree_map(_trained, drafter.parameters()))
    return drafter


def _trained(array: mx.array) -> mx.array:
    """In float32, and in the order in memory that a checkpoint has: sums come out the same after a restart."""
    return mx.contiguous(array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array)


def check_output(folder: Path) -> Path:
    """Makes sure that a run can write to `folder`, and that nothing else is in it.

    Raises:
        UserError: it cannot be written, or it holds something that is no run.
    """
    make_folder(folder)
    if (folder / "config.json").exists() and read_checkpoint(folder) is None:
        raise UserError("the output folder has a model that mtp train did not write", given=folder, fix="name another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError("the output folder cannot be written", given=folder, fix="name another, or its permissions")
    return folder


def make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            "cannot make the folder", given=f"{folder}: {error.strerror}", fix="name another --output"
        ) from error
    return folder


def target_key(target: Target, adapter_path: Path | None) -> str:
    """Tells targets apart by their files, adapters included."""
    parts = [fingerprint.of_folder(folder) for folder in (target.path, adapter_path) if folder is not None]
    return "-".join(parts)


def _identity(plan: Plan, of_target: str, text: Text) -> dict[str, Any]:
    """All that decides the outcome, what a user would name first at the beginning."""
    rows = (text.train, text.valid)
    return {
        **plan.settings.to_dict(),
        "val_batches": plan.val_batches,
        **vars(plan.shape),
        "init": None if plan.init is None else fingerprint.of_folder(resolve(plan.init)),
        "data": fingerprint.of_arrays(*(array for part in rows for array in (part.tokens, part.segments))),
        "model": of_target,
    }


def _observed(
    place: Path, target: Target, rows: Rows, top_k: int, follow: int, stops: tuple[int, ...], progress: Progress
) -> Observations:
    key = fingerprint.of_arrays(rows.tokens, rows.segments) + f"-{top_k}-{follow}"
    store = Store(Path(f"{place}{key}"), key, rows)
    store.fill(target, top_k=top_k, follow=follow, progress=_named(progress, "reading text"))
    return store.open(stops)


def _named(progress: Progress, what: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(what, done, total)


def _extras(plan: Plan, target: Target, text: Text, config: dict[str, Any]) -> dict[str, bytes]:
    """The tokenizer, by which a wrong pair is told, and a model card."""
    card = training_card(target.name, plan.init, plan.settings, text.train.num_tokens, config)
    files = {"README.md": card.encode()}
    if target.path is not None and (target.path / "tokenizer.json").exists():
        files["tokenizer.json"] = (target.path / "tokenizer.json").read_bytes()
    return files
