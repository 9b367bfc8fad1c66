"""Beginnings of training documents, for the target to continue."""

import numpy as np
from packing import DOMAINS, Documents

BOS, TURN = 2, 105


class PromptSource:
    """Draws prompts of equal length: dialogues from their start, raw text from random places after BOS."""

    def __init__(self, documents: Documents, rng: np.random.Generator):
        self.rng = rng
        self.pools = [documents[domain, "train"] for domain in DOMAINS]

    def batch(self, size: int, length: int) -> np.ndarray:
        """int32 [size, length], domains in equal shares."""
        pools = [[d for d in pool if len(d) > length] for pool in self.pools]
        pools = [pool for pool in pools if pool]
        return np.stack([self._prompt(pools[i % len(pools)], length) for i in range(size)])

    def _prompt(self, pool: list[np.ndarray], length: int) -> np.ndarray:
        document = pool[self.rng.integers(len(pool))].astype(np.int32)
        if document[1] == TURN:
            return document[:length]
        start = self.rng.integers(1, len(document) - length + 2)
        return np.concatenate([[BOS], document[start : start + length - 1]]).astype(np.int32)
