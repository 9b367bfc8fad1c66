"""Continuous batching with mlx-lm's surface: sequences are inserted and removed while others run.

Prompts are processed in pieces between the rounds of the sequences that are running already, which thus go on
streaming. All sequences of a batch draft to the same depth; each accepts its own count.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx_lm.generate import StopSequences

from mtp_mlx.arguments import check_positive
from mtp_mlx.batching.admission import Admission
from mtp_mlx.batching.request import Request, make_request
from mtp_mlx.batching.responses import BatchStats, BatchToken, PromptProgress
from mtp_mlx.decoding.acceptance import rule_for
from mtp_mlx.decoding.batch import Batch, Decided, Joining, Member
from mtp_mlx.decoding.compiled import round_for
from mtp_mlx.decoding.depth import Depth, FixedDepth, depth_policy
from mtp_mlx.decoding.prefill import PREFILL_STEP_SIZE
from mtp_mlx.decoding.round import Round
from mtp_mlx.decoding.sampling import LogitsProcessor, Sampler
from mtp_mlx.decoding.slots import take
from mtp_mlx.errors import MisuseError
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.load import AnyTarget, as_drafter, as_target
from mtp_mlx.models.drafter import Drafter

MAX_TOKENS = 128  # mlx-lm's default, as is the next
COMPLETION_BATCH_SIZE = 32
# Prompt tokens between two rounds while others are running: they wait for these.
ADMISSION_STEP_SIZE = 64


class BatchGenerator:
    """Continuous batching: sequences are inserted and removed while others run.

    Args:
        model: the target, ours or one that `mlx_lm.load` returned.
        draft_model: its drafter; None decodes plainly.
        num_draft_tokens: drafts a round for every sequence, or "auto", which learns it for each size of batch.
        max_tokens: most tokens of a sequence that has no number of its own.
        stop_tokens: sequences of ids that end a sequence of tokens.
        sampler, logits_processors: of sequences that have none of their own.
        completion_batch_size: most sequences that run at once; others wait.
        prefill_batch_size: mlx-lm's; prompts are processed one after another, but at least so many may run at once.
        prefill_step_size: prompt tokens to process at a time when nothing else runs.
        admission_step_size: the same while others are running.
    """

    def __init__(
        self,
        model: AnyTarget,
        *,
        draft_model: Drafter | AnyTarget | None = None,
        num_draft_tokens: int | str = "auto",
        max_tokens: int = MAX_TOKENS,
        stop_tokens: Sequence[Sequence[int]] | None = None,
        sampler: Sampler | None = None,
        logits_processors: list[LogitsProcessor] | None = None,
        completion_batch_size: int = COMPLETION_BATCH_SIZE,
        prefill_batch_size: int = 1,
        prefill_step_size: int = PREFILL_STEP_SIZE,
        admission_step_size: int = ADMISSION_STEP_SIZE,
    ):
        check_positive("completion_batch_size", completion_batch_size)
        check_positive("prefill_batch_size", prefill_batch_size)
        check_positive("prefill_step_size", prefill_step_size)
        check_positive("admission_step_size", admission_step_size)
        self.model, self.drafter, self.num_draft_tokens = as_target(model), _for_batches(draft_model), num_draft_tokens
        self.max_tokens, self.stop_sequences = max_tokens, StopSequences(stop_tokens)
        self.sampler, self.processors = sampler, logits_processors or []
        self.completion_batch_size = max(completion_batch_size, prefill_batch_size)
        self.prefill_step_size, self.admission_step_size = prefill_step_size, admission_step_size
        self.counters = BatchStats()
        self._depth_for(round_for(self.model, self.drafter), 1)  # refuses a depth that cannot be
        self._admission = Admission(self.model, self.drafter)
        self._batch = Batch(self.model, self.drafter, self._depth_for)
        self._running: list[Request] = []
        self._decided: list[Decided] = []  # by a round that is over, not looked at yet
        self._responses: list[BatchToken] = []  # not handed out yet
        self._uids = 0

    def insert(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: Sequence[int] | None = None,
        caches: Sequence[KVCache | None] | None = None,
        all_tokens: Sequence[Sequence[int]] | None = None,
        samplers: Sequence[Sampler | None] | None = None,
        logits_processors: Sequence[list[LogitsProcessor] | None] | None = None,
        stop_sequences: Sequence[StopSequences] | None = None,
    ) -> list[int]:
        """Queues sequences.

        Args:
            prompts: token ids, at least one each.
            max_tokens: of each sequence.
            caches: stores with what precedes each prompt; they are left as they are.
            all_tokens: the ids that those stores hold, which logits processors see then as well.
            samplers, logits_processors: of each sequence, None for the generator's own.
            stop_sequences: mlx-lm's, of each sequence.

        Returns:
            A uid for each.

        Raises:
            MisuseError: lists of other lengths than `prompts`, or a prompt, limit or store that cannot be.
        """
        segments = [[prompt] for prompt in prompts]
        return self.insert_segments(
            segments, max_tokens, caches, all_tokens, samplers, logits_processors, stop_sequences
        )

    def insert_segments(
        self,
        segments: Sequence[Sequence[Sequence[int]]],
        max_tokens: Sequence[int] | None = None,
        caches: Sequence[KVCache | None] | None = None,
        all_tokens: Sequence[Sequence[int]] | None = None,
        samplers: Sequence[Sampler | None] | None = None,
        logits_processors: Sequence[list[LogitsProcessor] | None] | None = None,
        stop_sequences: Sequence[StopSequences] | None = None,
    ) -> list[int]:
        """Queues sequences whose prompts come in segments: processing stops at the end of each for a moment, where
        `extract_cache` gives a store with just the segments so far. Otherwise as `insert`.
        """
        count = len(segments)
        given = {
            "max_tokens": _each(count, max_tokens, self.max_tokens),
            "caches": _each(count, caches, None),
            "all_tokens": _each(count, all_tokens, []),
            "samplers": _each(count, samplers, self.sampler),
            "logits_processors": _each(count, logits_processors, self.processors),
            "stop_sequences": _each(count, stop_sequences, self.stop_sequences),
        }
        _check_lengths(count, given)
        rows = zip(segments, *given.values(), strict=True)
        requests = [make_request(self.model, self._uids + n, *row) for n, row in enumerate(rows)]
        # Refuses samplers that do not mix.
        rule_for([request.member.sampler for request in [*self._requests(), *requests]])
        self._uids += count
        self._admission.waiting += requests
        return [request.uid for request in requests]

    def next(self) -> tuple[list[PromptProgress], list[BatchToken]]:
        """One step: how far prompts are, and the tokens that a round gave, in the order of the sequences' places.

        Both are empty only when there is nothing left to do. The next round is on its way when this returns.
        """
        progress, responses = [], []
        while self._requests() and not progress and not responses:
            started = time.perf_counter()
            progress, responses = self._step()
            seconds = time.perf_counter() - started
            if responses:
                self.counters.generation_time += seconds
                self.counters.generation_tokens += len(responses)
            else:
                self.counters.prompt_time += seconds
        return progress, responses

    def next_generated(self) -> list[BatchToken]:
        """As `next`, the tokens alone; empty only when there is nothing left to do."""
        responses = []
        while self._requests() and not responses:
            _, responses = self.next()
        return responses

    def extract_cache(self, uids: Sequence[int]) -> dict[int, tuple[KVCache, list[int]]]:
        """Of each sequence, wherever it is, a store of its own and the ids that it holds: the prompt, as far as it was
        processed, and every emitted token."""
        return {r.uid: (self._whole_cache(r), self._held(r)) for r in self._requests() if r.uid in set(uids)}

    def remove(self, uids: Sequence[int], return_prompt_caches: bool = False) -> dict[int, tuple[KVCache, list[int]]]:
        """Ends sequences, wherever they are; with `return_prompt_caches`, what `extract_cache` gives for each."""
        gone = [request for request in self._requests() if request.uid in set(uids)]
        caches = self.extract_cache(uids) if return_prompt_caches else {}
        leaving = [request.member for request in gone if request in self._running]
        self._admission.remove(gone)
        self._running = [request for request in self._running if request not in gone]
        if leaving:
            self._decided += self._batch.finish()  # those who stay get their tokens with the next round
            self._batch.change([], leaving)
        return caches

    def close(self) -> None:
        """Forgets every sequence."""
        self.remove([request.uid for request in self._requests()])

    @contextmanager
    def stats(self) -> Iterator[BatchStats]:
        """Counts what is done within a `with` block."""
        before, self.counters = self.counters, BatchStats()
        try:
            yield self.counters
        finally:
            self.counters.peak_memory = mx.get_peak_memory() / 1e9
            self.counters = before

    def _requests(self) -> list[Request]:
        return [*self._running, *self._admission.requests]

    def _depth_for(self, round: Round, slots: int) -> Depth:
        return FixedDepth(0) if self.drafter is None else depth_policy(self.num_draft_tokens, round.depth(slots))

    def _step(self) -> tuple[list[PromptProgress], list[BatchToken]]:
        """Hands out what the last round decided, lets sequences in and out, and starts the next round."""
        leaving = self._settle()
        joining = self._join()
        self._batch.change(joining, leaving)
        if len(self._batch):
            self._batch.dispatch()
        progress = self._prefill()
        # Last of all: a processor or sampler may raise an error, and no token may get lost by that.
        responses, self._responses = self._responses, []
        return progress, responses

    def _settle(self) -> list[Member]:
        """Notes what the last round decided; the sequences that ended with it."""
        decided, self._decided = self._decided + self._batch.finish(), []
        by_member = {id(request.member): request for request in self._running}
        ended = []
        for each in decided:
            request = by_member.get(id(each.member))
            if request is not None and self._emit(request, each.tokens, each.accepted, each.logits, each.verified):
                ended.append(request)
        self._running = [request for request in self._running if request not in ended]
        return [request.member for request in ended]

    def _join(self) -> list[Joining]:
        """Sequences whose prompt is done and whose first token did not end them."""
        joining = []
        for request in self._admission.take_ready():
            tokens, _ = request.first.read()
            if self._emit(request, tokens, 0, request.first.logits[0]):
                continue
            request.member.history += tokens
            request.member.length = request.start
            joining.append(Joining(request.member, request.cache, request.first.token, request.hidden))
            request.cache = request.first = request.hidden = None
            self._running.append(request)
        return joining

    def _emit(
        self, request: Request, tokens: list[int], accepted: int, logits: mx.array, verified: int | None = None
    ) -> bool:
        """Hands out tokens of a sequence; whether it ended. `verified` drafts made them, in a round."""
        emitted, round = request.emit(tokens, accepted, logits, verified)
        self.counters.speculation += round
        self._responses += emitted
        if emitted[-1].finish_reason is None:
            return False
        cache = self._cache_of(request)
        emitted[-1].store = lambda: self._with_last(request, cache)
        return True

    def _prefill(self) -> list[PromptProgress]:
        """Starts processing as much of the waiting prompts as may come between two rounds."""
        budget = self.admission_step_size if self._running else self.prefill_step_size
        before = self._admission.processed
        progress = self._admission.process(budget, self.completion_batch_size - len(self._running))
        if tokens := self._admission.processed - before:
            self.counters.prompt_tokens += tokens
            self._batch.share_time()
        return progress

    def _cache_of(self, request: Request) -> KVCache:
        """The store of a sequence: its prompt, as far as it was processed, and all that was emitted but the last."""
        if request.cache is None:
            return self._batch.take(request.member, request.start + len(request.ids) - 1)
        return request.cache

    def _whole_cache(self, request: Request) -> KVCache:
        """A store of a sequence's own, with every emitted token."""
        cache = self._cache_of(request)
        return self._with_last(request, take(cache, 0) if cache is request.cache else cache)

    def _with_last(self, request: Request, cache: KVCache) -> KVCache:
        """Adds the last token to a store that holds all that was emitted but that."""
        if request.ids:
            self.model.model.prefill(mx.array([request.ids[-1:]]), cache)
            mx.eval(cache.arrays)
        return cache

    def _held(self, request: Request) -> list[int]:
        """The ids that `_whole_cache` holds."""
        return request.all_tokens[: len(request.all_tokens) - len(request.prompt) + request.processed]


def _each(count: int, values: Sequence | None, default: Any) -> Sequence:
    """The `values` of so many sequences, with the default for None."""
    return [default] * count if values is None else [default if value is None else value for value in values]


def _check_lengths(count: int, lists: dict[str, Sequence]) -> None:
    for name, values in lists.items():
        if len(values) != count:
            raise MisuseError(f"{name} must have one entry for each prompt, {count}", given=f"{len(values)} entries")


def _for_batches(draft_model: Drafter | AnyTarget | None) -> Drafter | None:
    drafter = None if draft_model is None else as_drafter(draft_model)
    if drafter is not None and drafter.store_config is not None:
        raise MisuseError(
            "a batch needs an MTP drafter, which keeps no keys and values of its own",
            given="a stand-alone drafter",
            fix="use it for one sequence at a time",
        )
    return drafter
