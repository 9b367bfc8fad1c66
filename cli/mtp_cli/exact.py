"""Says what `--exact` does on this machine."""

from mtp_cli.console import note, status
from mtp_cli.pair import Pair
from mtp_cli.statistics import exact_line


def note_exact(pair: Pair, prompt_tokens: int, max_tokens: int) -> None:
    """Says how exact a generation of so many tokens is, and what it costs; nothing where exactness is not asked for."""
    if not pair.options.exact or max_tokens < 1:  # without a limit it is refused when it begins
        return
    from mtp_mlx.exactness import exact_way

    with status("finding widths that agree"):
        way = exact_way(pair.model, prompt_tokens + max_tokens, pair.options.num_draft_tokens)
    note(exact_line(way))
