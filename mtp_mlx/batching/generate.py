"""Replies to several prompts at once, with mlx-lm's signature and response."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral

import mlx.core as mx
from mlx_lm.generate import wired_limit
from mlx_lm.tokenizer_utils import TokenizerWrapper

from mtp_mlx.batching.generator import MAX_TOKENS, BatchGenerator
from mtp_mlx.batching.responses import BatchStats, BatchToken
from mtp_mlx.decoding.sampling import LogitsProcessor, Sampler
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.load import AnyTarget
from mtp_mlx.speculation import Speculation


@dataclass
class BatchResponse:
    """mlx-lm's response.

    Attributes:
        texts: of each prompt.
        stats: of all of them.
        caches: with `return_prompt_caches`, the store of each: its prompt and every emitted token.
        token_ids: with `return_token_ids`, the emitted ids without a stop id.
        logprobs: with `return_logprobs`, the log-probability of each of those.
        speculation: of each prompt.
    """

    texts: list[str]
    stats: BatchStats
    caches: list[KVCache] | None
    token_ids: list[list[int]] | None = None
    logprobs: list[list[float]] | None = None
    speculation: list[Speculation] = field(default_factory=list)


@dataclass
class _Reply:
    """What came of one prompt so far."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[mx.array] = field(default_factory=list)
    last: BatchToken | None = None

    def add(self, token: BatchToken, with_logprob: bool) -> None:
        self.last = token
        if token.finish_reason == "stop":
            return
        self.ids.append(token.token)
        if with_logprob:
            self.logprobs.append(token.logprobs[token.token])
            mx.async_eval(self.logprobs[-1])  # or the logits of every token would be kept


def batch_generate(
    model: AnyTarget,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[Sequence[int]],
    prompt_caches: Sequence[KVCache | None] | None = None,
    max_tokens: int | Sequence[int] = MAX_TOKENS,
    verbose: bool = False,
    return_prompt_caches: bool = False,
    return_token_ids: bool = False,
    return_logprobs: bool = False,
    *,
    samplers: Sequence[Sampler | None] | None = None,
    logits_processors: Sequence[list[LogitsProcessor] | None] | None = None,
    **options,
) -> BatchResponse:
    """Replies to several prompts at once; each reply is what `generate` gives for its prompt alone, up to rounding:
    `exact` is of one sequence, because how a row is rounded may depend on how many others are computed with it.

    Args:
        prompts: token ids of each.
        prompt_caches: stores with what precedes each prompt; they are left as they are.
        max_tokens: of all, or of each.
        verbose: print progress and statistics to stderr.
        samplers, logits_processors: of each prompt. What a store holds processors see by `PromptCache.processors`.
        options: of `BatchGenerator`, such as `draft_model`, `num_draft_tokens` and `sampler`.

    Raises:
        MisuseError: lists of other lengths than `prompts`, or a prompt, limit or store that cannot be.
    """
    if not isinstance(tokenizer, TokenizerWrapper):
        tokenizer = TokenizerWrapper(tokenizer)
    limits = [max_tokens] * len(prompts) if isinstance(max_tokens, Integral) else max_tokens
    generator = BatchGenerator(model, stop_tokens=[[token] for token in tokenizer.eos_token_ids], **options)
    uids = generator.insert(prompts, limits, prompt_caches, samplers=samplers, logits_processors=logits_processors)
    replies = {uid: _Reply() for uid in uids}
    with wired_limit(generator.model, [mx.default_stream(mx.default_device())]), generator.stats() as stats:
        while tokens := generator.next_generated():
            for token in tokens:
                replies[token.uid].add(token, return_logprobs)
            if verbose:
                _show_progress(replies)
    if verbose:
        _show(stats)
    return BatchResponse(
        texts=[tokenizer.decode(reply.ids) for reply in replies.values()],
        stats=stats,
        caches=[reply.last.prompt_cache for reply in replies.values()] if return_prompt_caches else None,
        token_ids=[reply.ids for reply in replies.values()] if return_token_ids else None,
        logprobs=[mx.stack(reply.logprobs).tolist() if reply.logprobs else [] for reply in replies.values()]
        if return_logprobs
        else None,
        speculation=[reply.last.speculation for reply in replies.values()],
    )


def _show_progress(replies: dict[int, _Reply]) -> None:
    done = sum(reply.last is not None and reply.last.finish_reason is not None for reply in replies.values())
    print(f"{done} of {len(replies)} prompts done", end="\r", file=sys.stderr)


def _show(stats: BatchStats) -> None:
    print(f"\nPrompt: {stats.prompt_tokens} tokens, {stats.prompt_tps:.3f} tokens-per-sec", file=sys.stderr)
    print(f"Generation: {stats.generation_tokens} tokens, {stats.generation_tps:.3f} tokens-per-sec", file=sys.stderr)
    print(f"Peak memory: {stats.peak_memory:.3f} GB", file=sys.stderr)
