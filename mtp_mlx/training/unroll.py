"""The drafter's recursion, at every position of a sequence at once.

Decoding drafts from one place, step by step. In training every position is such a place (an *anchor*): the anchor at
N drafts from token N with the target's hidden state at N-1 and its keys and values up to N-1, all at RoPE position N.
Step j then reads token N+j, of the sequence or of what the target would write from there, and its own projected hidden
state, as in decoding.
"""

import mlx.core as mx

from mtp_mlx.kv_cache import KeysValues
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.target import Target
from mtp_mlx.steps import Attending
from mtp_mlx.training.examples import Examples
from mtp_mlx.training.frozen_steps import visible


class AnchorStep(Attending):
    """What `DraftStep` shows the drafter at one place, for all anchors in one forward pass.

    Args:
        kv: the target's keys and values by layer type, in sequence order, one for each anchor [B, heads, A, head_dim].
        segments: which document of its row an anchor belongs to [B, A]; it sees no other.
        window: the target's sliding window or None; the drafter sees one key more, as in decoding.
        position: as `Gemma4Assistant.draft_position`.
    """

    def __init__(self, kv: dict[str, KeysValues], segments: mx.array, window: int | None, position: str = "next"):
        self.offset = 1 if position == "next" else 0
        self.kv = kv
        self.masks = visible(segments, None if window is None else window + 1)


def unroll(drafter: Gemma4Assistant, target: Target, examples: Examples, num_steps: int) -> list[mx.array]:
    """The drafter's own hidden states of each draft step.

    Returns:
        `num_steps` arrays [B, A, d]: entry [j][:, i] is what anchor N = i + 1 knows in step j.
    """
    step = AnchorStep(examples.kv, examples.segments, target.config.sliding_window, drafter.draft_position)
    hidden, states = examples.hidden, []
    for j in range(num_steps):
        own, hidden = drafter.step(target, examples.read[..., j], hidden, step)
        states.append(own)
    return states
