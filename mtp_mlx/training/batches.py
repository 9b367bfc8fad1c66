"""The batches of a training run: which rows come at which step, and over which tokens their loss is computed.

Everything is a function of seed and step, so that a run which goes on after an interruption sees what it would have
seen: its step is all there is to remember of its randomness and its place in the data.
"""

import mlx.core as mx
import numpy as np

from mtp_mlx.errors import UserError
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.training.candidates import draw
from mtp_mlx.training.examples import Examples, gather
from mtp_mlx.training.store import Observations

SAMPLED_FROM = 8192  # a vocabulary of more tokens is sampled, this many at a time


class Batches:
    """Batches of `size` rows; each pass over the rows is in an order of its own.

    Args:
        num_steps: draft steps K.
        max_candidates: most tokens to compute the loss over.

    Raises:
        UserError: there are fewer rows than a batch has.
    """

    def __init__(
        self,
        observations: Observations,
        drafter: Gemma4Assistant,
        *,
        size: int,
        num_steps: int,
        seed: int,
        max_candidates: int = SAMPLED_FROM,
    ):
        if len(observations) < size:
            raise UserError(
                f"a batch takes {size} rows, the training data has {len(observations)}",
                fix="give more text, or a smaller --batch-size or --max-seq-length",
            )
        self.observations, self.size, self.num_steps, self.seed = observations, size, num_steps, seed
        self.max_candidates = max_candidates
        self.row_of = table_rows(drafter)

    def __getitem__(self, step: int) -> Examples:
        """The batch of one step, from 0."""
        return self.rows(row_order(len(self.observations), step * self.size, self.size, self.seed), step)

    def rows(self, index: np.ndarray, step: int = 0) -> Examples:
        """The rows at `index` [b]; `step` chooses the candidates."""
        examples, ids = gather(self.observations, index, self.num_steps)
        if len(self.row_of) <= self.max_candidates:
            examples.labels = mx.array(self.row_of[ids].astype(np.int32))
        else:
            rng = np.random.default_rng([self.seed, step, 1])
            labels, examples.candidates = draw(ids, self.row_of, self.max_candidates, rng)
            examples.labels = mx.array(labels)
        return examples


def row_order(count: int, start: int, size: int, seed: int) -> np.ndarray:
    """Entries start … start+size-1 of an endless list: all of `count` rows in random order, again and again."""
    places = np.arange(start, start + size)
    orders = {p: np.random.default_rng([seed, p, 0]).permutation(count) for p in np.unique(places // count).tolist()}
    return np.array([orders[place // count][place % count] for place in places.tolist()])


def table_rows(drafter: Gemma4Assistant) -> np.ndarray:
    """Which row of the drafter's table belongs to each id [V]."""
    return np.array(drafter.rows_of(mx.arange(drafter.config.text.vocab_size)))
