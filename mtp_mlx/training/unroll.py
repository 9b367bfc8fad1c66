"""The drafter's recursion, at every position of a sequence at once.

Decoding drafts from one place, step by step. In training every position is such a place (an *anchor*): the anchor at
N drafts from token N with the target's hidden state at N-1 and its keys and values up to N-1, all at RoPE position N.
Step j then reads token N+j-1 of the sequence and its own projected hidden state, as in decoding.
"""

import mlx.core as mx

from mtp_mlx.kv_cache import KeysValues
from mtp_mlx.models.config import FULL, SLIDING
from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.steps import Attending, Mask
from mtp_mlx.training.examples import Examples


class AnchorStep(Attending):
    """What `DraftStep` shows the drafter at one place, for the anchors 1 … `anchors` in one forward pass.

    Args:
        kv: the target's keys and values by layer type, in sequence order.
        window: the target's sliding window; the drafter sees one key more, as in decoding.
        position: as `Gemma4Assistant.draft_position`.
    """

    def __init__(self, kv: dict[str, KeysValues], anchors: int, window: int, position: str = "next"):
        self.offset = 1 if position == "next" else 0
        self.kv = {kind: tuple(array[:, :, :anchors] for array in pair) for kind, pair in kv.items()}
        newest, key = mx.arange(anchors)[:, None], mx.arange(anchors)[None]
        seen = key <= newest
        self.masks: dict[str, Mask] = {FULL: seen, SLIDING: seen & (key > newest - window - 1)}


def unroll(drafter: Gemma4Assistant, target: Gemma4, examples: Examples, num_steps: int) -> list[mx.array]:
    """The drafter's own hidden states of each draft step.

    Returns:
        `num_steps` arrays [B, A, d] with A = L - num_steps anchors: entry [j][:, i] is what anchor N = i + 1 knows in
        step j when it predicts token N + j + 1; the target's opinion of it is at position N + j.
    """
    anchors = examples.tokens.shape[1] - num_steps
    step = AnchorStep(examples.kv, anchors, target.config.sliding_window, drafter.draft_position)
    hidden, states = examples.hidden[:, :anchors], []
    for j in range(num_steps):
        tokens = examples.tokens[:, 1 + j : 1 + j + anchors]
        own, hidden = drafter.step(target, tokens, hidden, step)
        states.append(own)
    return states
