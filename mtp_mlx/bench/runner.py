"""Runs one prompt in one way, without instruments or with them."""

import time
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import mlx.core as mx

from mtp_mlx.bench.instruments import Phases, TimedRound
from mtp_mlx.bench.runs import RoundCounts, Run
from mtp_mlx.decoding.acceptance import rule_for
from mtp_mlx.decoding.compiled import CompiledRound, round_for
from mtp_mlx.decoding.depth import Depth, depth_policy
from mtp_mlx.decoding.round import Round
from mtp_mlx.decoding.sampling import Controls, Sampling
from mtp_mlx.decoding.stream import Emitted, TokenStream
from mtp_mlx.decoding.widths import Widths
from mtp_mlx.errors import UserError
from mtp_mlx.models.drafter import Drafter
from mtp_mlx.models.target import Target

# Functions are compiled for each buffer capacity and each number of drafts, of which there are a few dozen at most; a
# run usually meets all that are left of them.
MOST_TRIES = 8
GREEDY = Sampling(temp=0.0)


class Way(NamedTuple):
    """How a prompt is run: plainly, or by a rule with so many drafts a round of one of the drafters."""

    rule: str = "plain"  # "plain", "mtp" or "lenient"
    drafts: int | str = 0
    drafter: str = ""


PLAIN = Way()


class Runner:
    """Generates a fixed number of tokens, or a whole reply, with one target.

    Args:
        drafters: by name; empty for plain decoding only.
        stop_ids: ids that end a run before it has `num_tokens`.
        delay: seconds to wait before each run.
        widths: how many rows passes compute, where results must be exact.
        room: tokens that the widths were measured for.

    Attributes:
        key_values: by way, bytes of keys and values, the most of any run.
        drafted: by way, in all runs, also in those that do not count.
    """

    def __init__(
        self,
        model: Target,
        drafters: Mapping[str, Drafter],
        num_tokens: int,
        stop_ids: Collection[int] = (),
        sampler: Sampling = GREEDY,
        delay: float = 0.0,
        widths: Widths | None = None,
        room: int = 0,
    ):
        self.model, self.drafters, self.sampler = model, drafters, sampler
        self.num_tokens, self.stop_ids, self.delay = num_tokens, stop_ids, delay
        self.widths, self.room = widths, room
        self.key_values: dict[Way, int] = {}
        self.drafted: dict[Way, int] = {}

    def run(self, ids: list[int], way: Way) -> Run:
        """One generation on an empty cache, from compiled functions only."""
        compiled, controls = self.round(way)
        depth = depth_policy(way.drafts, compiled.depth())
        for _ in range(MOST_TRIES):
            time.sleep(self.delay)
            traces = compiled.traces
            run = self.timed(compiled, ids, depth, controls, way)
            self.drafted[way] = self.drafted.get(way, 0) + run.speculation.drafted
            if compiled.traces == traces:
                break
        return run

    def phases(self, ids: list[int], way: Way) -> Phases:
        """Where the time of a round goes."""
        compiled, controls = self.round(way)
        timed = TimedRound(compiled)
        # What it learns from times with instruments in them must not stay with the pair.
        depth = deepcopy(depth_policy(way.drafts, compiled.depth()))
        for _ in range(2):  # the first one traces
            timed.reset()
            run = self.timed(timed, ids, depth, controls, way)
        return timed.phases(run.decode_seconds, run.speculation.rounds)

    def round(self, way: Way) -> tuple[CompiledRound, Controls | None]:
        rule, controls = rule_for([replace(self.sampler, lenient=way.rule == "lenient")])
        return round_for(self.model, self.drafters.get(way.drafter), rule, widths=self.widths), controls

    def timed(self, round: Round, ids: list[int], depth: Depth, controls: Controls | None, way: Way = PLAIN) -> Run:
        cache = self.model.make_cache()
        if self.widths is not None:
            cache.require(self.room + cache.max_rows)
        ends = {"max_tokens": self.num_tokens, "stop_ids": self.stop_ids}
        stream = TokenStream(round, cache, ids, **ends, depth=depth, controls=controls)
        mx.synchronize()
        mx.reset_peak_memory()
        emitted, times = [], []
        started = time.perf_counter()
        for each in stream:
            times.append(time.perf_counter())
            emitted.append(each._replace(logits=None))  # which would keep a vocabulary for each token
        if len(emitted) < 2:
            fix = "leave this prompt out, or ignore stop ids"
            raise UserError("a reply ends at its first token: there is nothing to time", given=f"{ids[-8:]}", fix=fix)
        self.key_values[way] = max(self.key_values.get(way, 0), cache.nbytes)
        peak = mx.get_peak_memory()
        return Run(
            [each.token for each in emitted],
            times[0] - started,
            times[-1] - times[0],
            peak,
            emitted[-1].speculation,
            [each.from_draft for each in emitted],
            _rounds(emitted),
        )


def _rounds(emitted: Sequence[Emitted]) -> list[RoundCounts]:
    """Each round, by what it added to the statistics."""
    after = [each.speculation for each in emitted]
    return [
        RoundCounts(new.drafted - old.drafted, new.accepted - old.accepted)
        for old, new in pairwise(after)
        if new.rounds > old.rounds
    ]
