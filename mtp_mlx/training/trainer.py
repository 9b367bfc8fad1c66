"""The training loop: Muon for matrices, AdamW for the rest, one compiled step."""

from collections.abc import Callable
from functools import partial

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_unflatten

from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.target import Target
from mtp_mlx.training.examples import Examples
from mtp_mlx.training.loss import Objective

WARMUP_STEPS = 20


class Trainer:
    """Trains `drafter` on what `target` made of some text; the target never changes.

    Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks") moves the matrices within the
    model; AdamW the embedding, the centroids, norms and scalars.

    Args:
        muon_rate, adam_rate: learning rates at full scale.
        schedule: progress in [0, 1] -> scale of both rates, after a short warm-up.
    """

    def __init__(
        self,
        drafter: Gemma4Assistant,
        target: Target,
        objective: Objective,
        *,
        muon_rate: float = 0.04,
        adam_rate: float = 0.012,
        schedule: Callable[[float], float] | None = None,
    ):
        self.drafter, self.target, self.objective = drafter, target, objective
        self.rates = muon_rate, adam_rate
        if drafter.config.use_ordered_embeddings:
            drafter.masked_embedding.freeze(keys=["token_ordering"], recurse=False)
        self.schedule = schedule or partial(linear_decay, fraction=0.4)
        muon = optim.Muon(muon_rate, weight_decay=0.0)
        adam = optim.AdamW(adam_rate, betas=[0.9, 0.98], weight_decay=0.0, bias_correction=True)
        self.optimizer = optim.MultiOptimizer([muon, adam], [_is_inner_matrix])
        self.optimizer.init(drafter.trainable_parameters())
        self.steps = 0
        self._loss_and_grad = nn.value_and_grad(drafter, self._loss)
        self._compile()

    def step(self, batch: Examples, progress: float) -> tuple[float, list[float]]:
        """One update.

        Args:
            progress: how much of the training is done, 0 to 1; sets the learning rates.

        Returns:
            Loss, and the share of the anchors at which drafts 1 … j are right [K], both before the update.
        """
        scale = min(1.0, (self.steps + 1) / WARMUP_STEPS) * self.schedule(progress)
        for optimizer, rate in zip(self.optimizer.optimizers, self.rates, strict=True):
            optimizer.learning_rate = rate * scale
        self._form = batch
        loss, accepted = self._compiled(batch.arrays)
        mx.eval(loss, accepted, self._state)
        self.steps += 1
        return loss.item(), accepted.tolist()

    def evaluate(self, batch: Examples) -> tuple[float, list[float]]:
        """Loss and shares as `step` gives them, on examples that are not trained on."""
        loss, accepted = self.objective(self.drafter, self.target, batch.like(batch.arrays))
        return loss.item(), accepted.tolist()

    def state(self) -> dict[str, mx.array]:
        """All that training goes on from: weights and the optimizer's memory, by name."""
        weights = tree_flatten(self.drafter.parameters(), prefix=".drafter")
        return dict(weights + tree_flatten(self.optimizer.state, prefix=".optimizer"))

    def restore(self, state: dict[str, mx.array], steps: int) -> None:
        """Goes on from what `state` gave after so many steps.

        Raises:
            ValueError: the state is of another drafter.
        """
        parts: dict[str, list[tuple[str, mx.array]]] = {"drafter": [], "optimizer": []}
        for name, array in state.items():
            part, _, path = name.partition(".")
            parts[part].append((path, array))
        self.drafter.load_weights(parts["drafter"])
        self.optimizer.state = tree_unflatten(parts["optimizer"])
        self.steps = steps
        mx.eval(self.drafter.parameters(), self.optimizer.state)
        self._compile()

    def _compile(self) -> None:
        self._state = [self.drafter.state, self.optimizer.state]
        self._compiled = mx.compile(self._update, inputs=self._state, outputs=self._state)

    def _loss(self, arrays: list[mx.array]) -> tuple[mx.array, mx.array]:
        return self.objective(self.drafter, self.target, self._form.like(arrays))

    def _update(self, arrays: list[mx.array]) -> tuple[mx.array, mx.array]:
        result, gradients = self._loss_and_grad(arrays)
        self.optimizer.update(self.drafter, gradients)
        return result


def linear_decay(progress: float, fraction: float) -> float:
    """1, falling to 0 over the last `fraction` of the training; 1 throughout for a fraction of 0."""
    return min(1.0, max(0.0, 1.0 - progress) / fraction) if fraction else 1.0


def _is_inner_matrix(path: str, array: mx.array) -> bool:
    return array.ndim == 2 and "embed" not in path
