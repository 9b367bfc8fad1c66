"""What the drafter is trained to do: propose what the target will choose, step after step."""

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from mtp_mlx.models.clustered_head import ClusteredHead
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.target import Target
from mtp_mlx.training.examples import Examples
from mtp_mlx.training.unroll import unroll

LEAST_TAIL = 1e-6  # of the drafter's probability outside the labels; below it there is nothing to learn


@dataclass(frozen=True)
class Objective:
    """Cross-entropy to the target's choice and to its distribution, and of the clusters to the choice's cluster.

    Attributes:
        num_steps: draft steps to unroll.
        step_decay: weight of each step relative to the one before; a later draft counts only if all before it agree.
        distribution_weight: share of the loss that is the cross-entropy to the target's probabilities of its likeliest
            tokens and of all others together; the rest is the cross-entropy to its one choice.
        cluster_weight: weight of the cluster's cross-entropy. It trains the centroids only.
    """

    num_steps: int = 4
    step_decay: float = 0.8
    distribution_weight: float = 0.0
    cluster_weight: float = 1.0

    @property
    def weights(self) -> list[float]:
        return [self.step_decay**j for j in range(self.num_steps)]

    def __call__(self, drafter: Gemma4Assistant, target: Target, examples: Examples) -> tuple[mx.array, mx.array]:
        """Returns the loss in nats a draft [], and at which share of the anchors drafts 1 … j are all the target's
        choice [K]; over a sample of the vocabulary this share is too high.
        """
        table = drafter.model.embed_tokens.weight
        table = table if examples.candidates is None else table[examples.candidates.rows]
        losses, accepted, right = [], [], True
        for j, own in enumerate(unroll(drafter, target, examples, self.num_steps)):
            counted = examples.weights[..., j]
            # Computed again for the gradient: the logits of one step are in memory at a time.
            loss, hit = mx.checkpoint(self._of_step)(own, table, *self._wanted(examples, j))
            if drafter.config.use_ordered_embeddings:
                loss = loss + self.cluster_weight * cluster_loss(drafter.masked_embedding, own, _rows(examples, j))
            right = hit & right
            places = mx.maximum(counted.sum(), 1.0)
            losses.append(self.weights[j] * (loss * counted).sum() / places)
            accepted.append((right * counted).sum() / places)
        return sum(losses) / sum(self.weights), mx.stack(accepted)

    def _wanted(self, examples: Examples, j: int) -> list[mx.array]:
        raises = [] if examples.candidates is None else [examples.candidates.raises]
        return [examples.labels[:, :, j], examples.probabilities[:, :, j], *raises]

    def _of_step(
        self, own: mx.array, table: mx.array, labels: mx.array, probabilities: mx.array, raises: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """Loss and whether the likeliest token is the first label, both [B, A].

        Args:
            own: the drafter's hidden states [B, A, d].
            table: rows of its table [C, d].
            labels, probabilities: places in `table` and what the target gives them [B, A, top_k].
            raises: of the logits [C].
        """
        labels = mx.stop_gradient(labels)  # a checkpointed function asks for the gradient of all it was given
        logits = own @ table.T
        logits = logits if raises is None else logits + raises
        logprobs = mx.take_along_axis(logits, labels, axis=-1) - mx.logsumexp(logits, axis=-1, keepdims=True)
        loss = -logprobs[..., 0]
        if self.distribution_weight:
            soft = distribution_loss(logprobs, probabilities)
            loss = (1 - self.distribution_weight) * loss + self.distribution_weight * soft
        return loss, mx.argmax(logits, axis=-1) == labels[..., 0]


def distribution_loss(logprobs: mx.array, probabilities: mx.array) -> mx.array:
    """Cross-entropy [...] of log-probabilities of some tokens [..., k] to the target's probabilities of them [..., k].

    All other tokens count as one, with what is left of both.
    """
    tail = mx.maximum(1 - probabilities.sum(axis=-1), 0.0)
    own_tail = mx.maximum(1 - mx.exp(logprobs).sum(axis=-1), LEAST_TAIL)
    return -(probabilities * logprobs).sum(axis=-1) - tail * mx.log(own_tail)


def cluster_loss(head: ClusteredHead, own: mx.array, rows: mx.array) -> mx.array:
    """Cross-entropy [...] of the centroid scores of `own` [..., d] to the clusters of table rows [...]."""
    return nn.losses.cross_entropy(head.centroids(mx.stop_gradient(own)), rows // head.cluster_size)


def _rows(examples: Examples, j: int) -> mx.array:
    """Table rows of the target's choices at step j [B, A]."""
    choices = examples.labels[:, :, j, 0]
    return choices if examples.candidates is None else examples.candidates.rows[choices]
