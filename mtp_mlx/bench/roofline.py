"""How close decoding comes to what the memory allows: a round cannot take less time than reading its weights."""

import time
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.target import Target

COLUMNS = 4096
_BYTES = {mx.DeviceType.cpu: 1 << 28, mx.DeviceType.gpu: 1 << 30}  # several times the largest caches
_TRIES = 5


@dataclass(frozen=True)
class Roofline:
    """Weights that are read, and how fast this machine reads memory.

    Attributes:
        bandwidth: bytes a second, measured.
        plain: the share of the bandwidth that reading the weights took up in plain decoding. More than 1 says that a
            part of them came from caches.
        mtp: the same for rounds with drafts; None where there were none.
    """

    bandwidth: float
    plain: float
    mtp: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@cache
def memory_bandwidth() -> float:
    """Bytes a second that products with a matrix read, which is what decoding does; the best of a few."""
    count = _BYTES[mx.default_device().type] // 4
    weights = mx.random.uniform(shape=(count // COLUMNS, COLUMNS))
    row = mx.ones((1, weights.shape[0]))
    mx.eval(weights, row)
    # Which of the two layouts is read faster depends on the BLAS.
    best = min(_seconds(product) for product in (lambda: row @ weights, lambda: row[:, :COLUMNS] @ weights.T))
    return weights.nbytes / best


def target_bytes(model: Target, rows: float = 1) -> float:
    """Bytes of weights that a forward pass over `rows` tokens reads.

    Tables that are only looked up count for nothing; of experts, those that so many tokens choose, if they choose
    independently of each other.
    """
    config = model.config
    looked_up = {"embed_tokens_per_layer"} if config.tie_word_embeddings else {"embed_tokens_per_layer", "embed_tokens"}
    chosen = config.share_of_experts(rows)

    def share(path: str) -> float:
        return 0 if looked_up & set(path.split(".")) else chosen if ".experts." in path else 1

    return sum(array.nbytes * share(path) for path, array in tree_flatten(model.parameters()))


def drafter_bytes(drafter: nn.Module) -> float:
    """Bytes of weights that one draft step reads: of a clustered head, only the clusters that are scored."""
    parameters = tree_flatten(drafter.parameters(), destination={})
    if not isinstance(drafter, Gemma4Assistant) or not drafter.config.use_ordered_embeddings:
        return sum(array.nbytes for array in parameters.values())
    head = drafter.masked_embedding
    scored = head.top_k / head.num_centroids
    parameters.pop("masked_embedding.token_ordering")
    return sum(
        array.nbytes * (scored if path.startswith("model.embed_tokens.") else 1) for path, array in parameters.items()
    )


def _seconds(product) -> float:
    times = []
    for _ in range(_TRIES):
        started = time.perf_counter()
        mx.eval(product())
        times.append(time.perf_counter() - started)
    return min(times)
