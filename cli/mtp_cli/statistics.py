"""The closing lines of a generation."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mtp_mlx import GenerationResponse, Speculation


def closing_lines(response: "GenerationResponse", drafts: bool) -> list[str]:
    """mlx-lm's closing lines, and one on speculation."""
    lines = [
        f"Prompt: {response.prompt_tokens} tokens, {response.prompt_tps:.3f} tokens-per-sec",
        f"Generation: {response.generation_tokens} tokens, {response.generation_tps:.3f} tokens-per-sec",
        f"Peak memory: {response.peak_memory:.3f} GB",
    ]
    return [*lines, f"Speculation: {speculation_line(response.speculation)}"] if drafts else lines


def speculation_line(speculation: "Speculation") -> str:
    """Rounds, acceptance, and tokens a round in words."""
    if not speculation.drafted:
        return "nothing was drafted"
    by_position = " · ".join(f"{rate:.0%}" for rate in speculation.acceptance_by_position)
    return (
        f"{speculation.rounds} rounds, {speculation.acceptance_rate:.0%} of {speculation.drafted} drafts accepted "
        f"({by_position} by position), {speculation.mean_acceptance_length:.2f} tokens a round"
    )
