"""How many tokens to draft in a round."""

from mtp_mlx.errors import MisuseError
from mtp_mlx.kv_cache import MAX_DRAFT_TOKENS

# Three drafts gave the best median speed-up on the demo pair; Google's and vLLM's advice for the small models is 2–4.
AUTO_DRAFT_TOKENS = 3


def draft_depth(num_draft_tokens: int | str) -> int:
    """Drafts a round for a `num_draft_tokens` argument.

    Raises:
        MisuseError: not "auto" nor an integer between 0 and `MAX_DRAFT_TOKENS`.
    """
    if num_draft_tokens == "auto":
        return AUTO_DRAFT_TOKENS
    if isinstance(num_draft_tokens, int) and 0 <= num_draft_tokens <= MAX_DRAFT_TOKENS:
        return num_draft_tokens
    raise MisuseError(
        f"the number of draft tokens must be 'auto' or between 0 and {MAX_DRAFT_TOKENS}",
        given=num_draft_tokens,
    )
