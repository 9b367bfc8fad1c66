"""Whether MTP wrote what plain decoding wrote, and how far the lenient rule departs from it."""

from collections.abc import Sequence

import mlx.core as mx

from mtp_mlx.bench.runs import Departure, Divergence, Run
from mtp_mlx.decoding.prefill import prefill
from mtp_mlx.decoding.sampling import Sampling, log_softmax
from mtp_mlx.models.target import Target


def first_divergence(model: Target, prompt: list[int], plain: Run, others: Sequence[Run]) -> Divergence | None:
    """Where the first of `others` that differs from `plain` does so."""
    expected = plain.tokens
    for run in others:
        pairs = enumerate(zip(expected, run.tokens, strict=True))
        at = next((n for n, (ours, theirs) in pairs if ours != theirs), None)
        if at is not None:
            gap = _logit_gap(model, prompt + expected[:at], expected[at], run.tokens[at])
            return Divergence(at, expected[at], run.tokens[at], gap)
    return None


def departure(model: Target, sampler: Sampling, prompt: list[int], run: Run) -> Departure:
    """How far a lenient run strays, by the target's probabilities of its tokens."""
    logits = model(mx.array([prompt + run.tokens[:-1]]))[0, len(prompt) - 1 :]
    tokens = mx.array(run.tokens)
    logprobs = log_softmax(logits.astype(mx.float32) / (sampler.temp or 1.0))
    surprise = -mx.take_along_axis(logprobs, tokens[:, None], axis=1)[:, 0]
    drafts = mx.array(run.from_draft)
    other = drafts & (mx.argmax(logits, axis=-1) != tokens)
    return Departure(other.mean().item(), (drafts * surprise).mean().item())


def _logit_gap(model: Target, ids: list[int], ahead: int, behind: int) -> float:
    hidden = prefill(model, mx.array([ids]), model.make_cache())
    logits = model.logits(hidden)[0, -1].astype(mx.float32)
    return (logits[ahead] - logits[behind]).item()
