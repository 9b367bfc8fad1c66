"""Several sequences at once: plain decoding and MTP at the same batch size, interleaved, rows compared one by one.

- As many prompts as the largest batch has rows. A smaller batch runs all of them too, in groups: every size does the
  same work.
- All rows of a group begin together. The aggregate speed is that of the time in which all of them run; a row whose
  drafts are accepted more often ends earlier.
- A run in which something was compiled for the first time is not counted, but done again.
- Every row must be what plain decoding gives for its prompt alone.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import mlx.core as mx

from mtp_mlx.batching import BatchGenerator
from mtp_mlx.bench.batch_report import BatchReport, BatchResult, BatchRun
from mtp_mlx.bench.machine import this_machine
from mtp_mlx.bench.measure import Progress, Workload
from mtp_mlx.bench.runner import GREEDY, MOST_TRIES
from mtp_mlx.decoding.acceptance import rule_for
from mtp_mlx.decoding.compiled import round_for
from mtp_mlx.decoding.sampling import Sampling
from mtp_mlx.errors import MisuseError
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.target import Target
from mtp_mlx.speculation import Speculation

MOST_ROWS = 64
# Hands out what one round emitted: the row and the token of each; empty at the end.
Step = Callable[[], Sequence[tuple[int, int]]]


def measure_batches(
    model: Target,
    drafter: Gemma4Assistant | None,
    workloads: Sequence[Workload],
    sizes: Sequence[int],
    *,
    num_tokens: int = 128,
    repeats: int = 1,
    num_draft_tokens: int | str = "auto",
    sampler: Sampling = GREEDY,
    progress: Progress | None = None,
) -> BatchReport:
    """Measures plain decoding and, with a drafter, MTP at each of the batch `sizes`.

    Args:
        workloads: as many as the largest size has rows; fewer are taken again from the beginning, of more some are
            left out, evenly.
        num_tokens: to emit in each row, at least 2.
        repeats: runs of each group of prompts and way.
        progress: called with (runs done, runs in all), first when warming up is done.

    Raises:
        MisuseError: sizes that are none, too few tokens or repeats, no prompts, or too long ones.
    """
    _check(model, workloads, sizes, num_tokens, repeats)
    prompts = _chosen(workloads, max(sizes))
    bench = _BatchBench(model, drafter, [prompt.ids for prompt in prompts], num_tokens, num_draft_tokens, sampler)
    return BatchReport(
        model=model.name,
        num_tokens=num_tokens,
        repeats=repeats,
        num_draft_tokens=num_draft_tokens if drafter is not None else 0,
        sampler=sampler,
        machine=this_machine(),
        prompts=prompts,
        results=bench.run_all(sizes, repeats, progress or (lambda done, total: None)),
    )


def _chosen(workloads: Sequence[Workload], count: int) -> list[Workload]:
    there = len(workloads)
    return [workloads[n * there // count if there > count else n % there] for n in range(count)]


def timed_batch(step: Step, rows: int) -> BatchRun:
    """Runs `step` until it hands out nothing more, and takes the times."""
    tokens: list[list[int]] = [[] for _ in range(rows)]
    first, last = [0.0] * rows, [0.0] * rows
    rounds = []
    started = time.perf_counter()
    while emitted := step():
        now = time.perf_counter() - started
        for row, token in emitted:
            first[row] = first[row] if tokens[row] else now
            last[row] = now
            tokens[row].append(token)
        rounds.append((now, len(emitted)))
    start, end = max(first), min(last)
    full = sum(count for now, count in rounds if start < now <= end)
    return BatchRun(tokens, first, last, full, end - start)


class _BatchBench:
    """One pair, its prompts and one number of tokens."""

    def __init__(
        self,
        model: Target,
        drafter: Gemma4Assistant | None,
        prompts: list[list[int]],
        num_tokens: int,
        num_draft_tokens: int | str,
        sampler: Sampling,
    ):
        self.model, self.drafter, self.prompts, self.num_tokens = model, drafter, prompts, num_tokens
        self.num_draft_tokens, self.sampler = num_draft_tokens, sampler
        self.ways = ("plain",) if drafter is None else ("plain", "mtp")

    def run_all(self, sizes: Sequence[int], repeats: int, progress: Progress) -> list[BatchResult]:
        results = [BatchResult(size, len(self.prompts)) for size in sizes]
        groups = {size: list(self._groups(size)) for size in sizes}
        total = repeats * len(self.ways) * sum(map(len, groups.values()))
        expected = [self.run([prompt], "plain").tokens[0] for prompt in self.prompts]
        progress(0, total)
        done = 0
        for turn in range(repeats):
            for result in results:
                for n, group in enumerate(groups[result.rows], start=turn):
                    for way in self.ways if n % 2 == 0 else self.ways[::-1]:
                        result.runs(way).append(self.run(group, way))
                        done += 1
                        progress(done, total)
        return [self._compared(result, expected) for result in results]

    def _groups(self, size: int) -> Iterator[list[list[int]]]:
        for start in range(0, len(self.prompts), size):
            group = self.prompts[start : start + size]
            yield [*group, *self.prompts[: size - len(group)]]

    def run(self, prompts: list[list[int]], way: str) -> BatchRun:
        """One group, from compiled functions only."""
        compiled = round_for(self.model, self.drafter if way == "mtp" else None, rule_for([self.sampler])[0])
        for _ in range(MOST_TRIES):
            traces = compiled.traces
            run = self._timed(prompts, way)
            if compiled.traces == traces:
                break
        return run

    def _timed(self, prompts: list[list[int]], way: str) -> BatchRun:
        generator = BatchGenerator(
            self.model,
            draft_model=self.drafter if way == "mtp" else None,
            num_draft_tokens=self.num_draft_tokens,
            sampler=self.sampler,
            completion_batch_size=len(prompts),
            prefill_step_size=sum(map(len, prompts)),  # all rows begin together
        )
        uids = generator.insert(prompts, [self.num_tokens] * len(prompts))
        row_of = {uid: row for row, uid in enumerate(uids)}
        speculation = [Speculation()] * len(prompts)

        def step() -> list[tuple[int, int]]:
            tokens = generator.next_generated()
            for token in tokens:
                speculation[row_of[token.uid]] = token.speculation
            return [(row_of[token.uid], token.token) for token in tokens]

        mx.synchronize()
        mx.reset_peak_memory()
        run = timed_batch(step, len(prompts))
        return replace(run, speculation=speculation, peak_memory=mx.get_peak_memory())

    def _compared(self, result: BatchResult, expected: list[list[int]]) -> BatchResult:
        if not self.sampler.is_reproducible:
            return result
        outputs = [result.by_prompt(way, lambda run: run.tokens) for way in self.ways]
        different = [any(row != own for rows in outputs for row in rows[n]) for n, own in enumerate(expected)]
        return replace(result, different=different)


def _check(model: Target, workloads: Sequence[Workload], sizes: Sequence[int], num_tokens: int, repeats: int) -> None:
    wrong = next((size for size in sizes if not 1 <= size <= MOST_ROWS), None)
    if wrong is not None or not sizes:
        raise MisuseError(f"batch sizes must be between 1 and {MOST_ROWS}", given="none" if wrong is None else wrong)
    if num_tokens < 2 or repeats < 1:
        raise MisuseError("measure 2 tokens and 1 repeat at least", given=f"{num_tokens} tokens, {repeats} repeats")
    if not workloads:
        raise MisuseError("there are no prompts to measure on")
    longest, context = max(len(work.ids) for work in workloads), model.config.max_position_embeddings
    if longest + num_tokens > context:
        raise MisuseError(
            f"prompt and output must fit into the model's context of {context} tokens",
            given=f"{longest} + {num_tokens} tokens",
            fix="shorten the prompt or measure fewer tokens",
        )
