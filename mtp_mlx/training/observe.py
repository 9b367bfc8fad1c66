"""What the frozen target makes of rows of text: all that a drafter reads and all that it should predict.

The target runs once over each row; training never runs it again. Its opinion of a place is the ids of its `top_k`
likeliest next tokens and their log-probabilities.
"""

import mlx.core as mx

from mtp_mlx.kv_cache import KeysValues
from mtp_mlx.models.target import Target
from mtp_mlx.training.frozen_steps import BranchStep, PackedStep

POSITIONS = 512  # that get logits at a time: over 262,144 tokens these are 0.5 GB


class View:
    """The target's view of B rows of L tokens.

    Attributes:
        hidden: hidden states after the final norm [B, L, D].
        kv: by layer type, the keys and values that the drafter reads [B, heads, L, head_dim].
        ids: the likeliest next tokens, best first [B, L, S, top_k], int32.
        logprobs: of these [B, L, S, top_k], float16.

    S is 1 for the opinion of the row's own next token, and more where the target's own choices were followed: entry s
    is then its opinion after its choices of the entries before.
    """

    def __init__(self, hidden: mx.array, kv: dict[str, KeysValues], ids: mx.array, logprobs: mx.array):
        self.hidden, self.kv, self.ids, self.logprobs = hidden, kv, ids, logprobs

    def arrays(self) -> dict[str, mx.array]:
        """By name, floating numbers in float16: half the memory, and hardly any draft changes."""
        arrays = {"hidden": self.hidden, "ids": self.ids, "logprobs": self.logprobs}
        for kind, (keys, values) in self.kv.items():
            arrays |= {f"{kind}.keys": keys, f"{kind}.values": values}
        return {name: a.astype(mx.float16) if mx.issubdtype(a.dtype, mx.floating) else a for name, a in arrays.items()}


def view(target: Target, tokens: mx.array, segments: mx.array, *, top_k: int = 1, follow: int = 0) -> View:
    """Runs the target over rows of documents.

    Args:
        tokens, segments: ids, and which document they belong to, [B, L].
        top_k: likeliest tokens to keep of each opinion.
        follow: from every place, go on for so many tokens with the target's own choices.
    """
    row = PackedStep(target.config, segments)
    hidden = target.model.forward(tokens, row)
    opinions = [likeliest(target, hidden, top_k)]
    branches: dict[int, list[KeysValues]] = {}
    for depth in range(1, follow + 1):
        step = BranchStep(target.config, row, branches, depth)
        after = target.model.forward(opinions[-1][0][..., 0], step)
        opinions.append(likeliest(target, after, top_k))
    ids, logprobs = (mx.stack(parts, axis=2) for parts in zip(*opinions, strict=True))
    return View(hidden, row.kv, ids, logprobs)


def likeliest(target: Target, hidden: mx.array, top_k: int) -> tuple[mx.array, mx.array]:
    """Ids [B, L, top_k] of the likeliest next tokens after hidden states [B, L, D], best first, and log-probabilities.

    The first is what greedy decoding takes: the lowest id where logits tie.
    """
    B, L, D = hidden.shape
    flat, parts = hidden.reshape(1, B * L, D), []
    for start in range(0, B * L, POSITIONS):
        parts.append(_likeliest(target.logits(flat[:, start : start + POSITIONS])[0].astype(mx.float32), top_k))
        mx.eval(parts[-1])
    ids, logprobs = (mx.concatenate(arrays).reshape(B, L, top_k) for arrays in zip(*parts, strict=True))
    return ids, logprobs


def _likeliest(logits: mx.array, top_k: int) -> tuple[mx.array, mx.array]:
    choice = mx.argmax(logits, axis=-1, keepdims=True)
    if top_k == 1:
        ids = choice
    else:
        ids = mx.argpartition(logits, kth=-top_k, axis=-1)[:, -top_k:]
        rank = mx.where(ids == choice, mx.inf, mx.take_along_axis(logits, ids, axis=-1))
        ids = mx.take_along_axis(ids, mx.argsort(-rank, axis=-1), axis=-1)
    logprobs = mx.take_along_axis(logits, ids, axis=-1) - mx.logsumexp(logits, axis=-1, keepdims=True)
    return ids.astype(mx.int32), logprobs.astype(mx.float16)
