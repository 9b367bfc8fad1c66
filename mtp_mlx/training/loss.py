"""What the drafter is trained to do: propose the token that the target will choose, step after step."""

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from mtp_mlx.models.clustered_head import ClusteredHead
from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.training.examples import Examples
from mtp_mlx.training.unroll import unroll


@dataclass(frozen=True)
class Objective:
    """Cross-entropy to the target's argmax over the full head, and to its cluster.

    Attributes:
        num_steps: draft steps to unroll.
        step_decay: weight of each step relative to the one before; a later draft counts only if all before it agree.
        cluster_weight: weight of the cluster's cross-entropy. It trains the centroids only.
    """

    num_steps: int = 4
    step_decay: float = 0.8
    cluster_weight: float = 1.0

    @property
    def weights(self) -> list[float]:
        return [self.step_decay**j for j in range(self.num_steps)]

    def __call__(self, drafter: Gemma4Assistant, target: Gemma4, examples: Examples) -> tuple[mx.array, mx.array]:
        """Returns the loss in nats a draft [], and how often the full head's argmax is the target's by step [k]."""
        losses, agreement = [], []
        choices = drafter.rows_of(examples.choices)  # the full head's logits come in the order of its table
        states = unroll(drafter, target, examples, self.num_steps)
        for j, (own, weight) in enumerate(zip(states, self.weights, strict=True)):
            labels = choices[:, 1 + j : 1 + j + own.shape[1]]
            logits = drafter.model.embed_tokens.as_linear(own)
            loss = nn.losses.cross_entropy(logits, labels).mean()
            if drafter.config.use_ordered_embeddings:
                loss = loss + self.cluster_weight * cluster_loss(drafter.masked_embedding, own, labels).mean()
            losses.append(weight * loss)
            agreement.append((mx.argmax(logits, axis=-1) == labels).mean())
        return sum(losses) / sum(self.weights), mx.stack(agreement)


def cluster_loss(head: ClusteredHead, own: mx.array, labels: mx.array) -> mx.array:
    """Cross-entropy [...] of the centroid scores of `own` [..., d] to the clusters of `labels` [...], table rows."""
    return nn.losses.cross_entropy(head.centroids(mx.stop_gradient(own)), labels // head.cluster_size)
