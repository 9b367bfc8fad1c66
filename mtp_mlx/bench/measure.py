"""The protocol: plain decoding and MTP, interleaved, on the same prompts, and their outputs compared.

- A run in which something was compiled for the first time is not counted, but done again.
- Each prompt runs plainly and with MTP right after each other, in alternating order: drifts of the machine hit both.
- Every run emits the same number of tokens; stop ids are ignored.
- Decoding is timed from the first token to the last.
- Greedy outputs must be equal, and those drawn with a seed; where they are not, the first difference and its logit gap
  are reported. Draws without a seed have the same distribution, but differ.
- The lenient rule, where it is asked for, is a third way, and how far it departs from the target's choices is measured.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
from mlx.utils import tree_flatten

from mtp_mlx.bench.machine import this_machine
from mtp_mlx.bench.report import Departure, Divergence, Memory, PromptResult, Report, Run
from mtp_mlx.decoding.acceptance import rule_for
from mtp_mlx.decoding.compiled import CompiledRound, round_for
from mtp_mlx.decoding.depth import Depth, depth_policy
from mtp_mlx.decoding.prefill import prefill
from mtp_mlx.decoding.sampling import Controls, Sampling, log_softmax
from mtp_mlx.decoding.stream import TokenStream
from mtp_mlx.errors import MisuseError, UserError
from mtp_mlx.exactness import ExactWay, exact_way
from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant

Progress = Callable[[int, int], None]

# Functions are compiled for each buffer capacity and each number of drafts, of which there are a few dozen at most; a
# run usually meets all that are left of them.
MOST_TRIES = 8
GREEDY = Sampling(temp=0.0)


@dataclass(frozen=True)
class Workload:
    """A prompt to measure on: its category, its text for the report, and its ids."""

    category: str
    text: str
    ids: list[int]


def measure(
    model: Gemma4,
    drafter: Gemma4Assistant | None,
    workloads: Sequence[Workload],
    *,
    num_tokens: int = 128,
    repeats: int = 1,
    num_draft_tokens: int | str = "auto",
    sampler: Sampling = GREEDY,
    lenient: bool = False,
    exact: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Measures plain decoding and, with a drafter, MTP.

    Args:
        num_tokens: to emit in each run, at least 2.
        repeats: runs of each prompt and way.
        sampler: how tokens are drawn.
        lenient: also measure the lenient rule, which is not lossless.
        exact: decode in widths that agree to the bit, in every way; the report says how and at what price.
        progress: called with (runs done, runs in all), first when warming up is done.

    Raises:
        MisuseError: too few tokens or repeats, or a prompt that leaves no room for them in the context.
        UserError: drafting was asked for, and nothing was ever drafted. ("auto" may try it and find that it does not
            pay: that is a result.)
    """
    _check(model, workloads, num_tokens, repeats)
    longest = max(len(work.ids) for work in workloads) + num_tokens
    way = exact_way(model, longest, num_draft_tokens) if exact else None
    bench = _Bench(model, drafter, num_draft_tokens, num_tokens, sampler, lenient, way, longest)
    results = bench.run_all(workloads, repeats, progress or (lambda done, total: None))
    if drafter is not None and num_draft_tokens != 0 and not bench.drafted:
        raise UserError("nothing was drafted", given=f"{num_tokens} tokens a prompt", fix="measure more tokens")
    return Report(
        model=model.name,
        num_tokens=num_tokens,
        repeats=repeats,
        num_draft_tokens=num_draft_tokens if drafter is not None else 0,
        sampler=sampler,
        machine=this_machine(),
        memory=bench.memory(results),
        results=results,
        exact=way,
    )


def _check(model: Gemma4, workloads: Sequence[Workload], num_tokens: int, repeats: int) -> None:
    if num_tokens < 2:
        raise MisuseError("decoding is timed from the first token to the last: 2 at least", given=num_tokens)
    if repeats < 1:
        raise MisuseError("repeats must be positive", given=repeats)
    if not workloads:
        raise MisuseError("there are no prompts to measure on")
    context = model.config.max_position_embeddings
    longest = max(workloads, key=lambda work: len(work.ids))
    if len(longest.ids) + num_tokens > context:
        raise MisuseError(
            f"prompt and output must fit into the model's context of {context} tokens",
            given=f"{len(longest.ids)} + {num_tokens} tokens, {longest.text[:40]!r}",
            fix="shorten the prompt or measure fewer tokens",
        )


class _Bench:
    """One pair and one number of tokens; runs prompts in each of the `ways`."""

    def __init__(
        self,
        model: Gemma4,
        drafter: Gemma4Assistant | None,
        num_draft_tokens: int | str,
        num_tokens: int,
        sampler: Sampling = GREEDY,
        lenient: bool = False,
        way: ExactWay | None = None,
        longest: int = 0,
    ):
        self.widths, self.longest = way and way.widths, longest
        self.model, self.drafter, self.sampler = model, drafter, sampler
        self.ways = ("plain",) if drafter is None else ("plain", "mtp", "lenient") if lenient else ("plain", "mtp")
        self.num_draft_tokens, self.num_tokens = num_draft_tokens, num_tokens
        self.key_values = 0  # bytes, the most of any run
        self.drafted = 0  # in all runs, also in those that do not count

    def run_all(self, workloads: Sequence[Workload], repeats: int, progress: Progress) -> list[PromptResult]:
        results = [PromptResult(work.category, work.text, len(work.ids)) for work in workloads]
        for way in self.ways:
            self.run(workloads[0].ids, way)  # once for nothing, for caches and clocks
        done, total = 0, len(workloads) * repeats * len(self.ways)
        progress(done, total)
        for turn in range(repeats):
            for n, (work, result) in enumerate(zip(workloads, results, strict=True), start=turn):
                for way in self.ways if n % 2 == 0 else self.ways[::-1]:
                    result.runs(way).append(self.run(work.ids, way))
                    done += 1
                    progress(done, total)
        return [self.compared(work, result) for work, result in zip(workloads, results, strict=True)]

    def run(self, ids: list[int], way: str) -> Run:
        """One generation on an empty cache, from compiled functions only."""
        drafter, drafts = (None, 0) if way == "plain" else (self.drafter, self.num_draft_tokens)
        rule, controls = rule_for([replace(self.sampler, lenient=way == "lenient")])
        compiled = round_for(self.model, drafter, rule, widths=self.widths)
        depth = depth_policy(drafts, compiled.depth())
        for _ in range(MOST_TRIES):
            traces = compiled.traces
            run = self.timed(compiled, ids, depth, controls)
            if compiled.traces == traces:
                break
        return run

    def timed(self, compiled: CompiledRound, ids: list[int], depth: Depth, controls: Controls | None) -> Run:
        cache = self.model.make_cache()
        if self.widths is not None:
            cache.require(self.longest + cache.max_rows)  # for which the widths were measured
        stream = TokenStream(compiled, cache, ids, max_tokens=self.num_tokens, depth=depth, controls=controls)
        mx.synchronize()
        mx.reset_peak_memory()
        tokens, times, drafts = [], [], []
        started = time.perf_counter()
        for emitted in stream:
            tokens.append(emitted.token)
            times.append(time.perf_counter())
            drafts.append(emitted.from_draft)
        self.key_values = max(self.key_values, cache.nbytes)
        self.drafted += emitted.speculation.drafted
        peak = mx.get_peak_memory()
        return Run(tokens, times[0] - started, times[-1] - times[0], peak, emitted.speculation, drafts)

    def compared(self, work: Workload, result: PromptResult) -> PromptResult:
        """The result with where MTP first differs from plain decoding, and how far a lenient run departs."""
        result = replace(result, departure=self.departure(work.ids, result.lenient[0]) if result.lenient else None)
        if not self.sampler.is_reproducible:
            return result
        expected = result.plain[0].tokens
        for run in result.mtp:
            pairs = enumerate(zip(expected, run.tokens, strict=True))
            at = next((n for n, (plain, mtp) in pairs if plain != mtp), None)
            if at is not None:
                plain, mtp = expected[at], run.tokens[at]
                gap = self.logit_gap(work.ids + expected[:at], plain, mtp)
                return replace(result, divergence=Divergence(at, plain, mtp, gap))
        return result

    def departure(self, prompt: list[int], run: Run) -> Departure:
        """How far a lenient run strays, by the target's probabilities of its tokens."""
        logits = self.model(mx.array([prompt + run.tokens[:-1]]))[0, len(prompt) - 1 :]
        tokens = mx.array(run.tokens)
        logprobs = log_softmax(logits.astype(mx.float32) / (self.sampler.temp or 1.0))
        surprise = -mx.take_along_axis(logprobs, tokens[:, None], axis=1)[:, 0]
        drafts = mx.array(run.from_draft)
        other = drafts & (mx.argmax(logits, axis=-1) != tokens)
        return Departure(other.mean().item(), (drafts * surprise).mean().item())

    def logit_gap(self, ids: list[int], ahead: int, behind: int) -> float:
        hidden = prefill(self.model, mx.array([ids]), self.model.make_cache())
        logits = self.model.logits(hidden)[0, -1].astype(mx.float32)
        return (logits[ahead] - logits[behind]).item()

    def memory(self, results: Sequence[PromptResult]) -> Memory:
        mtp = [run.peak_memory for result in results for run in result.mtp]
        return Memory(
            target=_nbytes(self.model),
            drafter=0 if self.drafter is None else _nbytes(self.drafter),
            key_values=self.key_values,
            plain_peak=max(run.peak_memory for result in results for run in result.plain),
            mtp_peak=max(mtp) if mtp else None,
        )


def _nbytes(module) -> int:
    return sum(array.nbytes for _, array in tree_flatten(module.parameters()))
