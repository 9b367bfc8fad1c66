"""Prompts on their way into a batch: a piece at a time, between the rounds of those that run already."""

from collections import deque
from collections.abc import Collection

import mlx.core as mx

from mtp_mlx.batching.request import Request
from mtp_mlx.batching.responses import PromptProgress
from mtp_mlx.decoding.acceptance import rule_for
from mtp_mlx.decoding.compiled import round_for
from mtp_mlx.models.drafter import Drafter
from mtp_mlx.models.target import Target


class Admission:
    """Sequences that wait, and those whose first token is on its way. Nothing here waits for the device long."""

    def __init__(self, model: Target, drafter: Drafter | None):
        self.model, self.drafter = model, drafter
        self.waiting: deque[Request] = deque()
        self.ready: list[Request] = []
        self.processed = 0  # tokens of prompts, so far

    @property
    def requests(self) -> list[Request]:
        return [*self.ready, *self.waiting]

    def remove(self, gone: Collection[Request]) -> None:
        self.waiting = deque(request for request in self.waiting if request not in gone)
        self.ready = [request for request in self.ready if request not in gone]

    def take_ready(self) -> list[Request]:
        ready, self.ready = self.ready, []
        return ready

    def process(self, budget: int, room: int) -> list[PromptProgress]:
        """Starts processing at most `budget` tokens of prompts, and lets at most `room` sequences become ready."""
        progress = []
        while budget > 0 and self.waiting and len(self.ready) < room:
            request = self.waiting[0]
            chunk = request.next_chunk(budget)
            budget -= len(chunk)
            if chunk:
                self._start(request, chunk)
                progress.append(_progress_of(request))
            if request.processed == len(request.prompt):
                self._choose_first(request)  # may raise an error of a processor: then it is tried again
                self.ready.append(self.waiting.popleft())
            elif progress[-1].end_of_segment:
                break  # whoever gave segments may want the store as it is now
        return progress

    def _start(self, request: Request, chunk: list[int]) -> None:
        mx.eval(request.cache.arrays)  # of the chunk before: what it needed is free then
        request.hidden = self.model.model.prefill(mx.array([chunk]), request.cache)
        request.processed += len(chunk)
        self.processed += len(chunk)
        mx.async_eval(request.hidden, request.cache.arrays)

    def _choose_first(self, request: Request) -> None:
        member = request.member
        rule, controls = rule_for([member.sampler])
        round = round_for(self.model, self.drafter, rule, [member.processors] if member.processors else ())
        request.first = round.first(request.cache, request.hidden, request.known, controls)
        mx.async_eval(request.first.decided, request.first.logits)


def _progress_of(request: Request) -> PromptProgress:
    done, total = request.processed, len(request.prompt)
    return PromptProgress(request.uid, (done, total), done in request.segments, done == total)
