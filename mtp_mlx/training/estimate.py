"""What a run will take, from a few steps of it: memory, disk and time."""

import math
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper

from mtp_mlx.models.target import Target
from mtp_mlx.training.begin import Plan, first_config, first_drafter
from mtp_mlx.training.continuations import continue_documents
from mtp_mlx.training.prepare import prepare
from mtp_mlx.training.rows import HELD_OUT, Rows, pack
from mtp_mlx.training.run import Destination, Run
from mtp_mlx.training.settings import GENERATE
from mtp_mlx.training.store import bytes_a_row, observe

WRITTEN = 8  # prompts that the target goes on with, to learn how long it takes
STEPS = 3  # that are timed, after a first one that compiles


@dataclass(frozen=True)
class Estimate:
    """What a run will take.

    Attributes:
        parameters: of the drafter.
        train_rows, valid_rows, train_tokens: of text.
        memory: most bytes that the measured steps took, the target's weights among them.
        observed_bytes: of the target's view of the text, on the disk.
        output_bytes: of the checkpoint and the drafter.
        write_seconds, observe_seconds, train_seconds: for text of the target's own ("generate"), for the target's view
            of the text, and for steps and evaluations.
    """

    parameters: int
    train_rows: int
    valid_rows: int
    train_tokens: int
    memory: int
    observed_bytes: int
    output_bytes: int
    write_seconds: float
    observe_seconds: float
    train_seconds: float

    @property
    def seconds(self) -> float:
        return self.write_seconds + self.observe_seconds + self.train_seconds

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {**asdict(self), "seconds": self.seconds}


@dataclass(frozen=True)
class _Amounts:
    """How much text there is: rows to train on and to validate with, and some of the rows."""

    train: int
    valid: int
    tokens: int
    some: Rows
    write_seconds: float = 0.0


def estimate(plan: Plan, target: Target, tokenizer: TokenizerWrapper) -> Estimate:
    """Runs a little of what `plan` says, without writing anything that stays.

    Raises:
        UserError: as `begin.begin`, where text or drafter are not what they should be.
    """
    settings = plan.settings
    amounts = (
        _written(plan, target, tokenizer) if settings.self_distill == GENERATE else _given(plan, target, tokenizer)
    )
    some = amounts.some.take(np.arange(settings.batch_size) % len(amounts.some))
    mx.reset_peak_memory()
    seen, seconds = {}, {}
    for follow in {settings.follow, settings.num_draft_tokens}:
        look = partial(observe, target, some, top_k=settings.top_k, follow=follow)
        look()
        started = time.perf_counter()
        seen[follow] = look()
        seconds[follow] = (time.perf_counter() - started) / len(some)
    config = first_config(plan, target)
    drafter = first_drafter(plan, target, config, seen[settings.follow])
    run = Run(
        drafter,
        target,
        settings,
        seen[settings.follow],
        seen[settings.num_draft_tokens],
        Destination(plan.output, config),
    )
    step, evaluation = _timed(run)
    evaluations = 1 + math.ceil(settings.iters / plan.steps_per_eval)
    row_bytes = partial(bytes_a_row, target, settings.max_seq_length, top_k=settings.top_k)
    return Estimate(
        parameters=sum(array.size for _, array in tree_flatten(drafter.trainable_parameters())),
        train_rows=amounts.train,
        valid_rows=amounts.valid,
        train_tokens=amounts.tokens,
        memory=mx.get_peak_memory(),
        observed_bytes=amounts.train * row_bytes(follow=settings.follow)
        + amounts.valid * row_bytes(follow=settings.num_draft_tokens),
        output_bytes=sum(array.nbytes for array in run.trainer.state().values())
        + sum(2 * array.size for _, array in tree_flatten(drafter.parameters())),
        write_seconds=amounts.write_seconds,
        observe_seconds=amounts.train * seconds[settings.follow] + amounts.valid * seconds[settings.num_draft_tokens],
        train_seconds=settings.iters * step + evaluations * evaluation * amounts.valid,
    )


def _timed(run: Run) -> tuple[float, float]:
    """Seconds of a step, and of an evaluation for each row."""
    run.step_once()
    steps = [run.step_once().seconds for _ in range(STEPS)]
    started = time.perf_counter()
    run.evaluate()
    return sum(steps) / STEPS, (time.perf_counter() - started) / len(run.valid.observations)


def _given(plan: Plan, target: Target, tokenizer: TokenizerWrapper) -> _Amounts:
    """The text as it is there."""
    text = prepare(plan.documents, target, tokenizer, plan.settings, plan.val_batches, plan.output)
    return _Amounts(len(text.train), len(text.valid), text.train.num_tokens, text.train)


def _written(plan: Plan, target: Target, tokenizer: TokenizerWrapper) -> _Amounts:
    """Text that the target is going to write: a little of it, and how much all of it will be."""
    settings, documents = plan.settings, plan.documents
    few, started = documents.train[:WRITTEN], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        ids = continue_documents(few, target, tokenizer, settings, Path(folder), lambda done, total: None)
    times = (len(documents.train) + len(documents.valid)) / len(few)
    seconds = (time.perf_counter() - started) * times
    some = pack(ids, settings.max_seq_length, tokenizer.bos_token_id)
    share = len(documents.train) / len(few)
    rows = min(math.ceil(len(some) * share), settings.iters * settings.batch_size)
    most = rows if plan.val_batches < 0 else plan.val_batches * settings.batch_size
    valid = min(most, max(1, round(HELD_OUT * rows)) if not documents.valid else len(documents.valid))
    return _Amounts(rows, valid, round(some.num_tokens * rows / len(some)), some, seconds)
