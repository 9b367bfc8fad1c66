"""Generation with mlx-lm's signatures and response fields, and a drafter.

Everything here is on the host: tokenizing, limits, text, timing. Tokens come from `decoding/`.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx
from mlx_lm.generate import wired_limit
from mlx_lm.tokenizer_utils import TokenizerWrapper
from transformers import PreTrainedTokenizerBase

from mtp_mlx.arguments import check_cache, check_limit, check_step_size, room_for, token_ids
from mtp_mlx.decoding.acceptance import rule_for
from mtp_mlx.decoding.compiled import round_for
from mtp_mlx.decoding.depth import AutoDepth, FixedDepth, depth_policy
from mtp_mlx.decoding.prefill import PREFILL_STEP_SIZE, Progress
from mtp_mlx.decoding.sampling import LogitsProcessor, Sampler, log_softmax
from mtp_mlx.decoding.stream import TokenStream
from mtp_mlx.decoding.widths import Widths, exact_widths
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.load import AnyTarget, as_drafter, as_target
from mtp_mlx.models.drafter import Drafter
from mtp_mlx.models.target import Target
from mtp_mlx.speculation import Speculation
from mtp_mlx.stop_strings import StopStrings

Prompt = str | Sequence[int] | mx.array


@dataclass
class GenerationResponse:
    """One emitted token: mlx-lm's fields, and what speculation did.

    Attributes:
        text: the next piece of text, possibly empty.
        token: the token id.
        logits: the target's logits [V] where the token was chosen, softcapped and processed.
        logprobs: log-probabilities [V] there; computed when asked for.
        from_draft: whether the drafter proposed it.
        prompt_tokens: tokens in the prompt.
        prompt_tps: prompt tokens a second, up to the first token.
        generation_tokens: tokens emitted so far.
        generation_tps: tokens a second from the first token to this one, (n - 1) / (t_n - t_1); 0.0 for the first.
        peak_memory: MLX's peak memory in GB.
        finish_reason: "stop" (stop id or stop string) or "length" on the last response, None before.
        speculation: rounds, drafted, accepted, up to this token's round.
        draft_position: place in its round of an accepted draft, from 0; None for the target's own tokens.
        corrects_draft: whether the target put it in the place of a draft it rejected.
    """

    text: str
    token: int
    logits: mx.array
    from_draft: bool
    prompt_tokens: int
    prompt_tps: float
    generation_tokens: int
    generation_tps: float
    peak_memory: float
    finish_reason: str | None = None
    speculation: Speculation = Speculation()
    draft_position: int | None = None
    corrects_draft: bool = False

    @cached_property
    def logprobs(self) -> mx.array:
        return log_softmax(self.logits)


def generate_step(
    prompt: Sequence[int] | mx.array,
    model: AnyTarget,
    *,
    draft_model: Drafter | AnyTarget | None = None,
    num_draft_tokens: int | str = "auto",
    max_tokens: int = 256,
    sampler: Sampler | None = None,
    logits_processors: list[LogitsProcessor] | None = None,
    prompt_cache: KVCache | None = None,
    prefill_step_size: int = PREFILL_STEP_SIZE,
    prompt_progress_callback: Progress | None = None,
    exact: bool = False,
) -> Iterator[tuple[int, mx.array, bool]]:
    """Emits tokens after a prompt. Does not stop at stop ids, as mlx-lm's does not.

    Args:
        prompt: token ids, at least one; with a `prompt_cache`, those that it does not hold yet.
        model: the target, ours or one that `mlx_lm.load` returned.
        draft_model: its drafter, or a small target that drafts by itself; None decodes plainly.
        num_draft_tokens: drafts a round, or "auto".
        max_tokens: most tokens to emit; -1 for as many as the context holds.
        sampler: log-probabilities [N, V] -> ids [N]; None is greedy.
        logits_processors: (ids so far [n], logits [1, V]) -> logits [1, V].
        prompt_cache: from `model.make_cache()`. However the generation ends, it then holds the prompt and every
            emitted token except the last one.
        exact: compute in such widths that logits are the same to the bit with a drafter and without, and at any
            number of drafts (see `decoding/widths.py`). Needs a limit of tokens.

    Yields:
        Token id, log-probabilities [V], whether it came from the drafter.

    Raises:
        MisuseError: an empty prompt, one longer than the context, or an impossible limit or depth.
    """
    target = as_target(model)
    stream = _token_stream(
        target,
        token_ids(prompt, target.config.vocab_size),
        draft_model=draft_model,
        num_draft_tokens=num_draft_tokens,
        max_tokens=max_tokens,
        sampler=sampler,
        processors=logits_processors or [],
        cache=prompt_cache,
        prefill_step_size=prefill_step_size,
        progress=prompt_progress_callback,
        exact=exact,
    )
    for emitted in stream:
        yield emitted.token, log_softmax(emitted.logits), emitted.from_draft


def stream_generate(
    model: AnyTarget,
    tokenizer: TokenizerWrapper | PreTrainedTokenizerBase,
    prompt: Prompt,
    max_tokens: int = 256,
    draft_model: Drafter | AnyTarget | None = None,
    *,
    num_draft_tokens: int | str = "auto",
    stop: str | Sequence[str] = (),
    sampler: Sampler | None = None,
    logits_processors: list[LogitsProcessor] | None = None,
    prompt_cache: KVCache | None = None,
    prefill_step_size: int = PREFILL_STEP_SIZE,
    prompt_progress_callback: Progress | None = None,
    exact: bool = False,
) -> Iterator[GenerationResponse]:
    """Emits text after a prompt, token by token, until a stop id, a stop string or the limit.

    Args:
        prompt: text (BOS is added where the text does not begin with it) or token ids.
        stop: a string that ends the text, or several; neither they nor anything after them is given out.

    The other arguments are those of `generate_step`.

    Yields:
        `GenerationResponse`s; the texts put together are the reply. A stop id has a response of its own, without text.
    """
    if not isinstance(tokenizer, TokenizerWrapper):
        tokenizer = TokenizerWrapper(tokenizer)
    stop_strings, target = StopStrings(stop), as_target(model)
    ids = token_ids(tokenize(tokenizer, prompt) if isinstance(prompt, str) else prompt, target.config.vocab_size)
    stream = _token_stream(
        target,
        ids,
        draft_model=draft_model,
        num_draft_tokens=num_draft_tokens,
        max_tokens=max_tokens,
        sampler=sampler,
        processors=logits_processors or [],
        cache=prompt_cache,
        prefill_step_size=prefill_step_size,
        progress=prompt_progress_callback,
        exact=exact,
        stop_ids=tokenizer.eos_token_ids,
    )
    yield from _responses(stream, tokenizer, stop_strings, len(ids))


def generate(
    model: AnyTarget,
    tokenizer: TokenizerWrapper | PreTrainedTokenizerBase,
    prompt: Prompt,
    verbose: bool = False,
    **kwargs,
) -> str:
    """The whole reply as one string. Arguments as `stream_generate`'s; `verbose` prints the text as it comes."""
    text = ""
    for response in stream_generate(model, tokenizer, prompt, **kwargs):
        text += response.text
        if verbose:
            print(response.text, end="", flush=True)
    if verbose:
        print()
    return text


def draft_tokens(
    model: AnyTarget, drafter: Drafter | AnyTarget, prompt_ids: Sequence[int] | mx.array, num_draft_tokens: int
) -> tuple[int, list[int]]:
    """What would be drafted after a prompt.

    Returns:
        The target's first token after `prompt_ids`, and the drafter's proposals after that token.
    """
    target = as_target(model)
    stream = _token_stream(
        target,
        token_ids(prompt_ids, target.config.vocab_size),
        draft_model=drafter,
        num_draft_tokens=num_draft_tokens,
        max_tokens=1,
    )
    outcome, hidden = stream.prefill()
    state = stream.round.draft(stream.cache, outcome.token, hidden, stream.depth.choose())
    return outcome.read()[0][0], state.drafts.tokens[0].tolist()


def tokenize(tokenizer: TokenizerWrapper, text: str) -> list[int]:
    """Token ids of a prompt with exactly one BOS, whether or not the text (a rendered chat template) has it already."""
    has_bos = tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)
    return tokenizer.encode(text, add_special_tokens=not has_bos)


def _token_stream(
    model: Target,
    prompt: list[int],
    *,
    draft_model: Drafter | None,
    num_draft_tokens: int | str,
    max_tokens: int,
    sampler: Sampler | None = None,
    processors: Sequence[LogitsProcessor] = (),
    cache: KVCache | None = None,
    prefill_step_size: int = PREFILL_STEP_SIZE,
    exact: bool = False,
    **options,
) -> TokenStream:
    check_step_size(prefill_step_size)
    draft_model = None if draft_model is None else as_drafter(draft_model)
    rule, controls = rule_for([sampler])
    cache = model.make_cache() if cache is None else cache
    widths = _exact_widths(model, cache, prompt, max_tokens, num_draft_tokens) if exact else None
    round = round_for(model, draft_model, rule, [processors] if processors else (), widths)
    depth = FixedDepth(0) if draft_model is None else depth_policy(num_draft_tokens, round.depth())
    check_cache(cache, model.config, "auto" if draft_model is None else num_draft_tokens)
    room = room_for(cache, prompt, max_tokens)
    step_size = min(int(prefill_step_size), len(prompt))
    options |= {"prefill_step_size": step_size, "controls": controls}
    return TokenStream(round, cache, prompt, max_tokens=room, depth=depth, **options)


def _exact_widths(
    model: Target, cache: KVCache, prompt: list[int], max_tokens: int, num_draft_tokens: int | str
) -> Widths:
    """The widths for an exact generation, the same with a drafter and without; gives the cache its final size."""
    depth_policy(num_draft_tokens, AutoDepth())  # refuses a number out of range
    check_cache(cache, model.config, num_draft_tokens)
    check_limit(max_tokens)
    cache.require(cache.offset + len(prompt) + room_for(cache, prompt, max_tokens) + cache.max_rows)
    return exact_widths(model, cache.capacity, num_draft_tokens)


def _responses(
    stream: TokenStream, tokenizer: TokenizerWrapper, stop: StopStrings, prompt_tokens: int
) -> Iterator[GenerationResponse]:
    """Turns emitted ids into text and times them."""
    detokenizer = tokenizer.detokenizer
    started, first = time.perf_counter(), None
    # Wired memory is what keeps a large model on a Mac from being paged out between rounds.
    with closing(iter(stream)) as tokens, wired_limit(stream.round.model, [mx.default_stream(mx.default_device())]):
        for n, emitted in enumerate(tokens, start=1):
            now = time.perf_counter()
            first = first or now
            is_stop_id = emitted.token in stream.stop_ids
            if not is_stop_id:
                detokenizer.add_token(emitted.token)
            text = stop.feed(detokenizer.last_segment)
            finish = "stop" if is_stop_id or stop.stopped else "length" if n == stream.max_tokens else None
            if finish and not stop.stopped:
                detokenizer.finalize()
                text += stop.feed(detokenizer.last_segment) + stop.flush()
            yield GenerationResponse(
                text=text,
                token=emitted.token,
                logits=emitted.logits,
                from_draft=emitted.from_draft,
                prompt_tokens=prompt_tokens,
                prompt_tps=prompt_tokens / (first - started),
                generation_tokens=n,
                generation_tps=(n - 1) / (now - first) if n > 1 else 0.0,
                peak_memory=mx.get_peak_memory() / 1e9,
                finish_reason=finish,
                speculation=emitted.speculation,
                draft_position=emitted.place if emitted.from_draft else None,
                corrects_draft=emitted.corrects_draft,
            )
            if finish:
                return
