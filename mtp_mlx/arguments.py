"""What callers may pass: arguments are brought to one form, or refused in one line before anything is computed."""

from collections.abc import Sequence
from numbers import Integral

import mlx.core as mx
import numpy as np

from mtp_mlx.errors import MisuseError
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.config import DecoderConfig


def token_ids(prompt: Sequence[int] | mx.array | np.ndarray, vocab_size: int) -> list[int]:
    """One sequence of token ids, [L] or [1, L] where it is an array of any integer type.

    Raises:
        MisuseError: several sequences, something else than integers, no token, or an id out of range, which would
            read foreign memory on the device.
    """
    array = _array(prompt)
    if array.size == 0:
        raise MisuseError("the prompt must have at least one token", fix="give it some text")
    if array.dtype.kind not in "iu" or array.ndim == 0 or array.shape != (*(1,) * (array.ndim - 1), array.size):
        raise MisuseError(
            "the prompt must be one sequence of token ids",
            given=f"{array.dtype}, shape {array.shape}",
            fix="tokenize it",
        )
    ids = array.reshape(-1).tolist()
    bad = next((i for i in ids if not 0 <= i < vocab_size), None)
    if bad is not None:
        raise MisuseError(f"token ids must be between 0 and {vocab_size - 1}", given=bad)
    return ids


def _array(prompt: Sequence[int] | mx.array | np.ndarray) -> np.ndarray:
    if isinstance(prompt, str | bytes) or not isinstance(prompt, Sequence | mx.array | np.ndarray):
        raise MisuseError("the prompt must be token ids", given=type(prompt).__name__, fix="tokenize it")
    try:
        if isinstance(prompt, mx.array):
            return np.asarray(prompt.tolist())  # whatever its dtype
        return np.asarray(prompt)
    except ValueError as error:  # rows of unequal lengths
        raise MisuseError("the prompt must be one sequence of token ids", given="several") from error


def check_step_size(prefill_step_size: int) -> None:
    check_positive("prefill_step_size", prefill_step_size)


def check_positive(name: str, value: int) -> None:
    if not isinstance(value, Integral) or value < 1:
        raise MisuseError(f"{name} must be a positive whole number", given=repr(value))


def check_cache(cache: KVCache, config: DecoderConfig, num_draft_tokens: int | str) -> None:
    """Refuses a cache that another model made, or one that is made for other rounds.

    Its rings are sized for the rounds it was made for: a longer one would overwrite keys that are still needed.
    """
    if not isinstance(cache, KVCache):
        raise MisuseError("prompt_cache must come from model.make_cache()", given=type(cache).__name__)
    if cache.config != config:
        raise MisuseError("prompt_cache must come from this model's make_cache()", given="another model's")
    if cache.slots != 1:
        raise MisuseError("prompt_cache must have one slot", given=f"{cache.slots} slots")
    if num_draft_tokens != "auto" and num_draft_tokens > cache.max_draft_tokens:
        raise MisuseError(
            f"the prompt_cache was made for at most {cache.max_draft_tokens} drafts a round",
            given=num_draft_tokens,
            fix="give its make_cache max_draft_tokens",
        )


def check_limit(max_tokens: int) -> None:
    """Refuses exact decoding without an end: its buffers have their final size from the first token on."""
    if max_tokens == -1:
        raise MisuseError("exact decoding needs a limit", given="max_tokens -1", fix="give a number of tokens")


def room_for(cache: KVCache, prompt: list[int], max_tokens: int) -> int:
    """How many tokens may be emitted: `max_tokens` or what is left of the context."""
    if not isinstance(max_tokens, Integral) or max_tokens == 0 or max_tokens < -1:
        raise MisuseError("max_tokens must be positive, or -1 for no limit", given=repr(max_tokens))
    context = cache.config.max_position_embeddings
    room = context - cache.offset - len(prompt)
    if room < 1:
        raise MisuseError(
            f"the prompt must be shorter than the model's context of {context} tokens",
            given=f"{cache.offset + len(prompt)} tokens",
            fix="shorten it",
        )
    return room if max_tokens == -1 else min(int(max_tokens), room)
