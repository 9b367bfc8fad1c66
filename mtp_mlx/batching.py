"""Continuous batching with mlx-lm's surface: sequences are inserted and removed while others run.

Prompts are processed in pieces between the rounds of the sequences that are running already, which thus go on
streaming. All sequences of a batch draft to the same depth; each accepts its own count.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import mlx.core as mx

from mtp_mlx.arguments import check_cache, check_positive, room_for, token_ids
from mtp_mlx.batch_request import BatchStats, BatchToken, Request
from mtp_mlx.decoding.acceptance import rule_for
from mtp_mlx.decoding.batch import Batch, Decided, Joining, Member
from mtp_mlx.decoding.compiled import round_for
from mtp_mlx.decoding.depth import Depth, FixedDepth, depth_policy
from mtp_mlx.decoding.prefill import PREFILL_STEP_SIZE
from mtp_mlx.decoding.round import Round
from mtp_mlx.decoding.sampling import LogitsProcessor, Sampler
from mtp_mlx.decoding.slots import take
from mtp_mlx.errors import MisuseError
from mtp_mlx.kv_cache import MAX_DRAFT_TOKENS, KVCache
from mtp_mlx.load import AnyTarget, as_target
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.speculation import Speculation

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
        prefill_step_size: prompt tokens to process at a time when nothing else runs.
        admission_step_size: the same while others are running.
    """

    def __init__(
        self,
        model: AnyTarget,
        *,
        draft_model: Gemma4Assistant | None = None,
        num_draft_tokens: int | str = "auto",
        max_tokens: int = MAX_TOKENS,
        stop_tokens: Sequence[Sequence[int]] | None = None,
        sampler: Sampler | None = None,
        logits_processors: list[LogitsProcessor] | None = None,
        completion_batch_size: int = COMPLETION_BATCH_SIZE,
        prefill_step_size: int = PREFILL_STEP_SIZE,
        admission_step_size: int = ADMISSION_STEP_SIZE,
    ):
        check_positive("completion_batch_size", completion_batch_size)
        check_positive("prefill_step_size", prefill_step_size)
        check_positive("admission_step_size", admission_step_size)
        self.model, self.drafter, self.num_draft_tokens = as_target(model), draft_model, num_draft_tokens
        self.max_tokens, self.stop_tokens = max_tokens, [list(tokens) for tokens in stop_tokens or []]
        self._longest_stop = max(map(len, self.stop_tokens), default=1)
        self.sampler, self.processors = sampler, logits_processors or []
        self.completion_batch_size = completion_batch_size
        self.prefill_step_size, self.admission_step_size = prefill_step_size, admission_step_size
        self.counters = BatchStats()
        self._depth_for(round_for(self.model, draft_model), 1)  # refuses a depth that cannot be
        self._batch = Batch(self.model, draft_model, self._depth_for)
        self._waiting: deque[Request] = deque()
        self._ready: list[Request] = []  # the first token is on its way
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
    ) -> list[int]:
        """Queues sequences.

        Args:
            prompts: token ids, at least one each.
            max_tokens: of each sequence.
            caches: stores with what precedes each prompt; they are left as they are.
            all_tokens: the ids that those stores hold, which logits processors see then as well.
            samplers, logits_processors: of each sequence, None for the generator's own.

        Returns:
            A uid for each.

        Raises:
            MisuseError: lists of other lengths than `prompts`, or a prompt, limit or store that cannot be.
        """
        count = len(prompts)
        given = {"max_tokens": max_tokens, "caches": caches, "all_tokens": all_tokens, "samplers": samplers}
        _check_lengths(count, **given, logits_processors=logits_processors)
        requests = [
            self._request(
                self._uids + n,
                prompts[n],
                self.max_tokens if max_tokens is None else max_tokens[n],
                None if caches is None else caches[n],
                [] if all_tokens is None else all_tokens[n],
                (samplers[n] if samplers else None) or self.sampler,
                (logits_processors[n] if logits_processors else None) or self.processors,
            )
            for n in range(count)
        ]
        others = [request.member.sampler for request in self._requests()]
        rule_for([*others, *(request.member.sampler for request in requests)])  # refuses samplers that do not mix
        self._uids += count
        self._waiting += requests
        return [request.uid for request in requests]

    def next(self) -> list[BatchToken]:
        """One round: the tokens that each running sequence was given, in the order of their places.

        Empty only when there is nothing left to do. The next round is on its way when this returns.
        """
        while self._requests():
            started = time.perf_counter()
            responses = self._step()
            seconds = time.perf_counter() - started
            if responses:
                self.counters.generation_time += seconds
                self.counters.generation_tokens += len(responses)
                return responses
            self.counters.prompt_time += seconds
        return []

    def next_generated(self) -> list[BatchToken]:
        """The same as `next`: mlx-lm's name for the tokens alone."""
        return self.next()

    def remove(self, uids: Sequence[int], return_prompt_caches: bool = False) -> dict[int, KVCache]:
        """Ends sequences, wherever they are.

        Returns:
            With `return_prompt_caches`, the store of each: its prompt, as far as it was processed, and every emitted
            token but the last.
        """
        gone = [request for request in self._requests() if request.uid in set(uids)]
        caches = {request.uid: self._cache_of(request) for request in gone} if return_prompt_caches else {}
        leaving = [request.member for request in gone if request in self._running]
        self._waiting = deque(request for request in self._waiting if request not in gone)
        self._ready = [request for request in self._ready if request not in gone]
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
        return [*self._running, *self._ready, *self._waiting]

    def _depth_for(self, round: Round, slots: int) -> Depth:
        return FixedDepth(0) if self.drafter is None else depth_policy(self.num_draft_tokens, round.depth(slots))

    def _request(
        self,
        uid: int,
        prompt: Sequence[int],
        max_tokens: int,
        given: KVCache | None,
        held: Sequence[int],
        sampler: Sampler | None,
        processors: list[LogitsProcessor],
    ) -> Request:
        ids = token_ids(prompt, self.model.config.vocab_size)
        if given is not None:
            check_cache(given, self.model.config, "auto")
        # All have rings of one length, whatever rounds a given store was made for.
        cache = self.model.make_cache() if given is None else take(given, 0, max_draft_tokens=MAX_DRAFT_TOKENS)
        if len(held) not in (0, cache.offset):
            raise MisuseError(
                f"all_tokens must be the ids that its cache holds, {cache.offset}", given=f"{len(held)} ids"
            )
        known = [*held, *ids]
        room = room_for(cache, ids, max_tokens)
        return Request(uid, ids, room, cache, known, Member(sampler, processors, list(known), 0))

    def _step(self) -> list[BatchToken]:
        """Hands out what the last round decided, lets sequences in and out, and starts the next round."""
        leaving = self._settle()
        joining = self._join()
        self._batch.change(joining, leaving)
        if len(self._batch):
            self._batch.dispatch()
        self._prefill()
        # Last of all: a processor or sampler may raise an error, and no token may get lost by that.
        responses, self._responses = self._responses, []
        return responses

    def _settle(self) -> list[Member]:
        """Notes what the last round decided; the sequences that ended with it."""
        decided, self._decided = self._decided + self._batch.finish(), []
        by_member = {id(request.member): request for request in self._running}
        ended = []
        for each in decided:
            request = by_member.get(id(each.member))
            if request is not None:
                last = self._emit(request, each.tokens, each.accepted, each.logits, each.verified)
                if last.finish_reason:
                    last.prompt_cache = self._cache_of(request)
                    ended.append(request)
        self._running = [request for request in self._running if request not in ended]
        return [request.member for request in ended]

    def _join(self) -> list[Joining]:
        """Sequences whose prompt is done and whose first token did not end them."""
        ready, self._ready = self._ready, []
        joining = []
        for request in ready:
            tokens, _ = request.first.read()
            last = self._emit(request, tokens, 0, request.first.logits[0])
            if last.finish_reason:
                last.prompt_cache = request.cache
                continue
            request.member.history += tokens
            request.member.length = request.start
            joining.append(Joining(request.member, request.cache, request.first.token, request.hidden))
            request.cache = request.first = request.hidden = None
            self._running.append(request)
        return joining

    def _emit(
        self, request: Request, tokens: list[int], accepted: int, logits: mx.array, verified: int | None = None
    ) -> BatchToken:
        """Hands out tokens of a sequence, up to its end; the last of them. `verified` drafts made them, in a round."""
        ends = (n for n in range(1, len(tokens)) if self._finish_reason(request, tokens[:n]))
        tokens = tokens[: next(ends, len(tokens))]
        if verified is not None:
            round = Speculation().after(verified, min(accepted, len(tokens)))
            request.speculation += round
            self.counters.speculation += round
        finish = self._finish_reason(request, tokens)
        request.ids += tokens
        for i, token in enumerate(tokens):
            self._responses.append(
                BatchToken(request.uid, token, logits[i], i < accepted, speculation=request.speculation)
            )
        last = self._responses[-1]
        last.finish_reason = finish
        if finish:
            last.all_tokens = request.known + request.ids
        return last

    def _finish_reason(self, request: Request, tokens: list[int]) -> str | None:
        """Why a sequence ends after these further `tokens`; None where it goes on."""
        newest = request.ids[-self._longest_stop :] + tokens
        if any(stop and newest[-len(stop) :] == stop for stop in self.stop_tokens):
            return "stop"
        return "length" if len(request.ids) + len(tokens) == request.limit else None

    def _cache_of(self, request: Request) -> KVCache:
        """The store of a sequence: its prompt, as far as it was processed, and all that was emitted but the last."""
        if request.cache is None:
            return self._batch.take(request.member, request.start + len(request.ids) - 1)
        return request.cache

    def _prefill(self) -> None:
        """Starts processing as much of the waiting prompts as may come between two rounds."""
        budget = self.admission_step_size if self._running else self.prefill_step_size
        while budget > 0 and self._waiting and len(self._running) + len(self._ready) < self.completion_batch_size:
            request = self._waiting[0]
            budget -= self._process(request, budget)
            if request.processed == len(request.prompt):
                self._choose_first(request)
                self._ready.append(self._waiting.popleft())

    def _process(self, request: Request, most: int) -> int:
        """Starts processing at most so many further tokens of a prompt; how many they are."""
        chunk = request.prompt[request.processed : request.processed + most]
        if chunk:
            mx.eval(request.cache.arrays)  # of the chunk before: what it needed is free then
            request.hidden = self.model.model.prefill(mx.array([chunk]), request.cache)
            request.processed += len(chunk)
            self.counters.prompt_tokens += len(chunk)
            self._batch.share_time()
            mx.async_eval(request.hidden, request.cache.arrays)
        return len(chunk)

    def _choose_first(self, request: Request) -> None:
        member = request.member
        rule, controls = rule_for([member.sampler])
        round = round_for(self.model, self.drafter, rule, [member.processors] if member.processors else ())
        request.first = round.first(request.cache, request.hidden, request.known, controls)
        mx.async_eval(request.first.decided, request.first.logits)


def _check_lengths(count: int, **lists: Sequence | None) -> None:
    for name, values in lists.items():
        if values is not None and len(values) != count:
            raise MisuseError(f"{name} must have one entry for each prompt, {count}", given=f"{len(values)} entries")
