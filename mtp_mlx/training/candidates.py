"""Which tokens a loss is computed over: all of a small vocabulary, a sample of a large one.

A sample holds every label of the batch, and others drawn evenly from all other tokens. These stand for the tokens that
were not drawn: their logits are raised by log(others in all / others drawn), so that the sum over the vocabulary is
estimated without bias (importance sampling as in Bengio & Senécal 2003, "Quick Training of Probabilistic Neural Nets").
With every token drawn it is the full loss.
"""

import math
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

STEP = 1024  # sizes are multiples of it, or each batch would compile the training step anew


@dataclass
class Candidates:
    """C tokens.

    Attributes:
        rows: their rows in the drafter's table [C], int32, each once.
        raises: what is added to their logits [C].
    """

    rows: mx.array
    raises: mx.array

    @property
    def arrays(self) -> list[mx.array]:
        return [self.rows, self.raises]


def draw(labels: np.ndarray, row_of: np.ndarray, size: int, rng: np.random.Generator) -> tuple[np.ndarray, Candidates]:
    """Draws candidates for a batch.

    Args:
        labels: ids of its labels [...].
        row_of: the drafter's table row of each id [V].
        size: how many candidates; more where there are so many labels.

    Returns:
        The place of each label among the candidates [...], int32, and the candidates.
    """
    vocabulary = len(row_of)
    known = np.unique(labels)
    if 2 * len(known) > size:  # at least as many others as labels
        size = -(-2 * len(known) // STEP) * STEP
    size = min(size, vocabulary)
    absent = np.ones(vocabulary, np.bool_)
    absent[known] = False
    others = np.flatnonzero(absent)
    drawn = rng.choice(others, size - len(known), replace=False, shuffle=False)
    ids = np.concatenate([known, drawn])
    raises = np.zeros(size, np.float32)
    if len(drawn):
        raises[len(known) :] = math.log(len(others) / len(drawn))
    places = np.searchsorted(known, labels).astype(np.int32)
    return places, Candidates(mx.array(row_of[ids].astype(np.int32)), mx.array(raises))
