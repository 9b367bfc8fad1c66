"""Things derived from a model's weights, and how to tell that the weights are still the same."""

from collections.abc import Hashable
from typing import Any

import mlx.nn as nn
from mlx.utils import tree_flatten


class Memo:
    """Keeps a few derived things, such as compiled functions, as long as their owner lives."""

    def __init__(self, most: int = 8):
        self._most, self._items = most, {}

    def get(self, key: Hashable, default: Any) -> Any:
        return self._items.get(key, default)

    def put(self, key: Hashable, value: Any) -> None:
        """Remembers `value`, and forgets the oldest where there are too many."""
        self._items.pop(key, None)
        self._items[key] = value
        if len(self._items) > self._most:
            del self._items[next(iter(self._items))]


def weight_ids(*modules: nn.Module | None) -> list[int]:
    """Identities of all weight arrays. Training, or loading an adapter, puts other arrays in their place.

    Whoever keeps the ids must keep the arrays too, or an id could be given to another array.
    """
    present = [module for module in modules if module is not None]
    return [id(array) for module in present for _, array in tree_flatten(module.parameters())]
