"""What a drafter learns from in one step: places in rows of text, and the target's opinion of what follows them.

A place is an *anchor*: the drafter starts there with the target's hidden state and its keys and values up to there, as
a round of decoding does, and drafts K tokens.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mtp_mlx.kv_cache import KeysValues
from mtp_mlx.training.candidates import Candidates
from mtp_mlx.training.store import Observations


@dataclass
class Examples:
    """B rows with A anchors each, for K draft steps.

    Attributes:
        segments: which document of its row an anchor belongs to [B, A].
        hidden: the target's hidden states there, after its final norm [B, A, D].
        kv: by layer type, the keys and values that the drafter reads [B, heads, A, head_dim].
        read: the token that each draft step reads [B, A, K].
        labels: the target's likeliest next tokens at each step, best first [B, A, K, top_k]: their places among
            `candidates`, or table rows of the drafter where there are none.
        probabilities: the target's, of these labels [B, A, K, top_k].
        weights: 1.0 where a step counts, 0.0 where there is nothing to draft [B, A, K].
        candidates: the tokens that the loss is computed over; None for all.
    """

    segments: mx.array
    hidden: mx.array
    kv: dict[str, KeysValues]
    read: mx.array
    labels: mx.array
    probabilities: mx.array
    weights: mx.array
    candidates: Candidates | None = None

    @property
    def arrays(self) -> list[mx.array]:
        """All of them in a fixed order, for compiled functions; `like` puts them together again."""
        own = [self.segments, self.hidden, self.read, self.labels, self.probabilities, self.weights]
        of_kv = [array for kind in sorted(self.kv) for array in self.kv[kind]]
        return own + of_kv + ([] if self.candidates is None else self.candidates.arrays)

    def like(self, arrays: list[mx.array]) -> "Examples":
        """Examples of the same form, with floating numbers in float32."""
        wide = [a.astype(mx.float32) if mx.issubdtype(a.dtype, mx.floating) else a for a in arrays]
        segments, hidden, read, labels, probabilities, weights, *rest = wide
        kinds = sorted(self.kv)
        kv = {kind: (rest[2 * n], rest[2 * n + 1]) for n, kind in enumerate(kinds)}
        candidates = Candidates(*rest[2 * len(kinds) :]) if self.candidates is not None else None
        return Examples(segments, hidden, kv, read, labels, probabilities, weights, candidates)


def gather(observations: Observations, index: np.ndarray, num_steps: int) -> tuple[Examples, np.ndarray]:
    """The rows at `index` [b] as examples, without labels, and the ids of the labels [b, A, K, top_k] for them."""
    parts = {name: array[index] for name, array in observations.arrays.items()}
    tokens, segments = observations.rows.tokens[index], observations.rows.segments[index]
    if parts["ids"].shape[2] > 1:
        read, ids, logprobs, weights = _followed(parts, segments, num_steps)
    else:
        read, ids, logprobs, weights = _as_written(parts, tokens, segments, num_steps)
    anchors = read.shape[1]
    stops = np.isin(np.concatenate([tokens[:, :anchors, None], read], axis=2), observations.stop_ids)
    weights = weights & ~np.logical_or.accumulate(stops, axis=2)[:, :, 1:]
    kv = {
        kind: tuple(mx.array(parts[f"{kind}.{part}"][:, :, :anchors]) for part in ("keys", "values"))
        for kind in observations.kinds
    }
    examples = Examples(
        mx.array(segments[:, :anchors]),
        mx.array(parts["hidden"][:, :anchors]),
        kv,
        mx.array(read),
        mx.zeros(ids.shape, mx.int32),
        mx.array(np.exp(logprobs.astype(np.float32))),
        mx.array(weights.astype(np.float32)),
    )
    return examples, ids


def _followed(parts: dict[str, np.ndarray], segments: np.ndarray, num_steps: int):
    """Anchors go on with the target's own choices, each from the end of a real beginning of its document."""
    ids, logprobs = parts["ids"], parts["logprobs"]
    valid = np.broadcast_to(segments[..., None] > 0, (*segments.shape, num_steps))
    return ids[:, :, :num_steps, 0], ids[:, :, 1 : num_steps + 1], logprobs[:, :, 1 : num_steps + 1], valid


def _as_written(parts: dict[str, np.ndarray], tokens: np.ndarray, segments: np.ndarray, num_steps: int):
    """Anchors go on with the row itself; step j of anchor i reads token i + 1 + j."""
    anchors = tokens.shape[1] - num_steps
    read = _windows(tokens, anchors, num_steps)
    ids, logprobs = (_windows(parts[name][:, :, 0], anchors, num_steps) for name in ("ids", "logprobs"))
    own = segments[:, :anchors, None]
    return read, ids, logprobs, (own > 0) & (_windows(segments, anchors, num_steps) == own)


def _windows(array: np.ndarray, anchors: int, size: int) -> np.ndarray:
    """[B, L, …] -> [B, anchors, size, …]: entry [:, i, j] is [:, i + 1 + j]."""
    return np.stack([array[:, 1 + j : 1 + j + anchors] for j in range(size)], axis=2)
