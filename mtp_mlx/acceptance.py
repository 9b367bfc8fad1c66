"""How many of a drafter's drafts a target accepts, over given prompts."""

from collections.abc import Callable, Sequence

from mtp_mlx.decoding.compiled import round_for
from mtp_mlx.decoding.depth import FixedDepth
from mtp_mlx.decoding.stream import TokenStream
from mtp_mlx.models.drafter import Drafter
from mtp_mlx.models.target import Target
from mtp_mlx.speculation import Speculation


def measure_acceptance(
    model: Target,
    drafter: Drafter,
    prompts: Sequence[list[int]],
    *,
    num_tokens: int = 64,
    num_draft_tokens: int = 4,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Speculation:
    """Decodes greedily after each prompt and adds up what was drafted and accepted.

    Args:
        prompts: token ids.
        num_tokens: to emit after each; stop ids are ignored.
        num_draft_tokens: drafts a round.
    """
    total = Speculation()
    for done, ids in enumerate(prompts, start=1):
        stream = TokenStream(
            round_for(model, drafter),
            model.make_cache(),
            ids,
            max_tokens=num_tokens,
            depth=FixedDepth(num_draft_tokens),
        )
        for _ in stream:
            pass
        total += stream.speculation
        progress(done, len(prompts))
    return total
