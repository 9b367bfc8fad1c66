"""A training run from its first step to its last, over interruptions.

`Run.steps` does the work and tells what it did, event after event; the caller may stop between any two of them, save,
and go on later from there. The result is the same to the bit.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.target import Target
from mtp_mlx.training.batches import Batches
from mtp_mlx.training.checkpoint import Checkpoint, save_drafter, write_checkpoint
from mtp_mlx.training.evaluate import Evaluation, evaluate
from mtp_mlx.training.settings import Settings
from mtp_mlx.training.store import Observations
from mtp_mlx.training.trainer import Trainer, linear_decay

ADAM_SHARE = 0.3  # of the matrices' learning rate: what worked for the demo drafter (0.04 and 0.012)


@dataclass(frozen=True)
class Stepped:
    """One update is done.

    Attributes:
        step: how many are done now.
        loss: before the update, in nats a draft.
        accepted: share of the places at which drafts 1 … j were right, by j, before the update.
        tokens: of text in the batch.
        seconds: that it took.
    """

    step: int
    loss: float
    accepted: tuple[float, ...]
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Evaluated:
    """The drafter was measured on the validation rows after so many steps."""

    step: int
    evaluation: Evaluation


@dataclass(frozen=True)
class Saved:
    """Checkpoint and drafter were written after so many steps."""

    step: int


Event = Stepped | Evaluated | Saved


@dataclass(frozen=True)
class Destination:
    """Where a run writes to, and what beside the drafter.

    Attributes:
        folder: of the drafter and the checkpoint.
        config: config.json of the drafter.
        extras: further files of the drafter by name.
        identity: what decides the outcome of the run, by name, for the checkpoint.
    """

    folder: Path
    config: dict[str, Any]
    extras: dict[str, bytes] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)


class Run:
    """Trains `drafter` on what `target` made of some text.

    Args:
        train, valid: observed text.
        checkpoint: where an earlier part of the run ended.
        save_every, steps_per_eval: steps between savings, and between evaluations.
    """

    def __init__(
        self,
        drafter: Gemma4Assistant,
        target: Target,
        settings: Settings,
        train: Observations,
        valid: Observations,
        destination: Destination,
        *,
        checkpoint: Checkpoint | None = None,
        save_every: int = 100,
        steps_per_eval: int = 200,
    ):
        self.drafter, self.target, self.settings, self.destination = drafter, target, settings, destination
        self.save_every, self.steps_per_eval = save_every, steps_per_eval
        self.trainer = Trainer(
            drafter,
            target,
            settings.objective,
            muon_rate=settings.learning_rate,
            adam_rate=settings.learning_rate * ADAM_SHARE,
            schedule=partial(linear_decay, fraction=settings.decay),
        )
        self.history: list[dict[str, Any]] = []
        if checkpoint is not None:
            self.trainer.restore(checkpoint.state, checkpoint.steps)
            self.history = checkpoint.history
        batches = partial(Batches, drafter=drafter, num_steps=settings.num_draft_tokens, seed=settings.seed)
        self.batches = batches(train, size=settings.batch_size)
        self.valid = batches(valid, size=1)

    @property
    def step(self) -> int:
        """How many steps are done."""
        return self.trainer.steps

    def steps(self) -> Iterator[Event]:
        """Goes on to the end of the run."""
        iters = self.settings.iters
        if not self.history:
            yield self.evaluate()
        while self.step < iters:
            yield self.step_once()
            last = self.step == iters
            if last or self.step % self.steps_per_eval == 0:
                yield self.evaluate()
            if last or self.step % self.save_every == 0:
                yield self.save()

    def evaluate(self) -> Evaluated:
        """Measures the drafter as it is now."""
        found = evaluate(self.drafter, self.target, self.settings.objective, self.valid)
        self.history.append({"step": self.step, **found.to_dict()})
        return Evaluated(self.step, found)

    def save(self) -> Saved:
        """Writes the checkpoint, and the drafter as it is now."""
        there = self.destination
        write_checkpoint(there.folder, self.trainer, there.identity, self.history)
        save_drafter(self.drafter, there.config, there.folder, there.extras)
        return Saved(self.step)

    def step_once(self) -> Stepped:
        """One update."""
        started = time.perf_counter()
        batch = self.batches[self.step]
        loss, accepted = self.trainer.step(batch, self.step / self.settings.iters)
        tokens = int((batch.segments > 0).sum().item())
        return Stepped(self.step, loss, tuple(accepted), tokens, time.perf_counter() - started)
