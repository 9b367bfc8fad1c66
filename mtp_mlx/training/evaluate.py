"""How good a drafter is on text that it was not trained on, told by what decoding will do with its drafts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.target import Target
from mtp_mlx.training.batches import Batches
from mtp_mlx.training.examples import Examples
from mtp_mlx.training.loss import Objective
from mtp_mlx.training.unroll import unroll

ANCHORS = 128  # whose drafts are chosen at a time: a full head has a logit for every token of each


@dataclass(frozen=True)
class Evaluation:
    """Figures over all places of the validation rows.

    Attributes:
        loss: in nats a draft.
        accepted: share of the places at which drafts 1 … j are all accepted, by j. Decoding greedily with K drafts from
            there would accept so many, because the drafter reads what the target chooses.
        recall: share of the places at which the target's choice is in one of the clusters that the head scores; None
            for a full head.
        places: how many there were.
    """

    loss: float
    accepted: tuple[float, ...]
    recall: float | None
    places: int

    @property
    def mean_accepted(self) -> float:
        """Accepted drafts a round, without the bonus token."""
        return sum(self.accepted)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {"mean_accepted": self.mean_accepted, **vars(self), "accepted": list(self.accepted)}


def evaluate(
    drafter: Gemma4Assistant,
    target: Target,
    objective: Objective,
    batches: Batches,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Measures `drafter` on all rows of `batches`, one after the other.

    Args:
        progress: called with (rows done, rows in all).
    """
    sums = [0.0, 0.0, 0.0, np.zeros(objective.num_steps), np.zeros(objective.num_steps)]
    for row in range(len(batches.observations)):
        examples = batches.rows(np.array([row]))
        examples = examples.like(examples.arrays)
        sums = [a + b for a, b in zip(sums, _of_row(drafter, target, objective, examples), strict=True)]
        progress(row + 1, len(batches.observations))
    loss, places, recalled, accepted, counted = sums
    recall = recalled / max(1.0, counted.sum()) if drafter.config.use_ordered_embeddings else None
    shares = accepted / np.maximum(counted, 1.0)
    return Evaluation(loss / max(1.0, places), tuple(shares.tolist()), recall, round(places))


def _of_row(drafter: Gemma4Assistant, target: Target, objective: Objective, examples: Examples) -> list:
    """Sums over the places of one row: loss, places, labels in the clusters; and by step, accepted and counted [K]."""
    counted = examples.weights[0]
    loss, _ = objective(drafter, target, examples)
    choices = _choices(drafter, examples)
    right, recalled = [], mx.array(0.0)
    for j, own in enumerate(unroll(drafter, target, examples, objective.num_steps)):
        drafts = [drafter.argmax(own[:, a : a + ANCHORS]) for a in range(0, own.shape[1], ANCHORS)]
        right.append((mx.concatenate(drafts, axis=1) == choices[..., j])[0])
        if drafter.config.use_ordered_embeddings:
            recalled += (in_best_clusters(drafter, own, choices[..., j])[0] * counted[:, j]).sum()
    accepted = (mx.cumprod(mx.stack(right, axis=-1).astype(mx.float32), axis=-1) * counted).sum(axis=0)
    places = counted[:, 0].sum()
    mx.eval(loss, places, recalled, accepted)
    by_step = [np.array(accepted), np.array(counted.sum(axis=0))]
    return [loss.item() * places.item(), places.item(), recalled.item(), *by_step]


def _choices(drafter: Gemma4Assistant, examples: Examples) -> mx.array:
    """Ids of the target's choices [B, A, K]."""
    rows = examples.labels[..., 0]
    rows = rows if examples.candidates is None else examples.candidates.rows[rows]
    return drafter.masked_embedding.token_ordering[rows] if drafter.config.use_ordered_embeddings else rows


def in_best_clusters(drafter: Gemma4Assistant, own: mx.array, ids: mx.array) -> mx.array:
    """Whether the clustered head scores the tokens `ids` [...] after hidden states `own` [..., d]."""
    head = drafter.masked_embedding
    scores = head.centroids(own)
    clusters = drafter.rows_of(ids) // head.cluster_size
    own_score = mx.take_along_axis(scores, clusters[..., None], axis=-1)
    return (scores > own_score).sum(axis=-1) < head.top_k
