"""Where the time of a round goes and what a token costs in energy: measured in runs of their own.

To time phases, each is waited for, which takes away the overlap that the rounds are built for. So these runs tell
shares, and the headline comes from runs without instruments.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from statistics import mean
from typing import Protocol

import mlx.core as mx

from mtp_mlx.decoding.drafts import Drafts
from mtp_mlx.decoding.round import Outcome, Round, State
from mtp_mlx.decoding.sampling import Controls
from mtp_mlx.kv_cache import KVCache


@dataclass(frozen=True)
class Phases:
    """Mean seconds of a round.

    Attributes:
        draft: the drafter's steps.
        verify: the target's forward pass over the last token and the drafts.
        accept: deciding which drafts agree.
        host: everything that is not waiting for the device: Python, dispatching, reading the result.
    """

    draft: float
    verify: float
    accept: float
    host: float

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.accept + self.host


@dataclass(frozen=True)
class Energy:
    """Joules a token, prefill included; `mtp` is None where only plain decoding was measured."""

    plain: float
    mtp: float | None


class Meter(Protocol):
    """Reads the energy that the machine used."""

    def joules(self, work: Callable[[], None]) -> float:
        """What the machine used while `work` ran."""


class AppleMeter:
    """Apple Silicon's own counters, through the package `zeus-apple-silicon`."""

    LABEL = "mtp-bench"

    def __init__(self, monitor):
        self.monitor = monitor

    def joules(self, work: Callable[[], None]) -> float:
        self.monitor.begin_window(self.LABEL)
        work()
        metrics = self.monitor.end_window(self.LABEL)
        parts = (metrics.cpu_total_mj, metrics.gpu_mj, metrics.dram_mj, metrics.ane_mj)
        return sum(part for part in parts if part is not None) / 1000


def energy_meter() -> Meter | None:
    """A meter, where a package that can read one is installed."""
    try:
        from zeus_apple_silicon import AppleEnergyMonitor
    except ImportError:
        return None
    return AppleMeter(AppleEnergyMonitor())


class TimedRound(Round):
    """A round that waits for each of its phases.

    Args:
        round: the one to time.
    """

    def __init__(self, round: Round):
        super().__init__(round.model, round.drafter, round.rule, round.processors, round.depths, round.widths)
        self.timed = round
        self._settle = mx.compile(self._accept)
        self.reset()

    def reset(self) -> None:
        """Forgets what was timed so far."""
        self.drafting = self.verifying = self.accepting = self.apart = 0.0

    def verify(
        self, cache: KVCache, state: State, histories: Sequence[list[int]] = (), controls: Controls | None = None
    ) -> tuple[Outcome, mx.array]:
        lengths = cache.lengths
        outcome, hidden = self.timed.verify(cache, state, histories, controls)
        self.verifying += _wait(outcome.decided, outcome.token, outcome.logits, hidden, cache.arrays)
        # Deciding is a part of the compiled pass over the target: done once more to see what it takes.
        started = time.perf_counter()
        decided = self._settle(outcome.logits, state.drafts.arrays, lengths, list(controls or ()))
        self.accepting += _wait(decided)
        self.apart += time.perf_counter() - started
        return outcome, hidden

    def draft(
        self, cache: KVCache, token: mx.array, hidden: mx.array, num_tokens: int, controls: Controls | None = None
    ) -> State:
        state = self.timed.draft(cache, token, hidden, num_tokens, controls)
        self.drafting += _wait(state.drafts.arrays)
        return state

    def phases(self, seconds: float, rounds: int) -> Phases:
        """What a round takes, where so many `rounds` took `seconds` in all."""
        host = max(0.0, seconds - self.verifying - self.drafting - self.apart)
        verifying = max(0.0, self.verifying - self.accepting)
        return Phases(self.drafting / rounds, verifying / rounds, self.accepting / rounds, host / rounds)

    def _accept(self, logits, drafts: list[mx.array], lengths: mx.array, controls: list[mx.array]):
        positions = lengths[:, None] + 1 + mx.arange(logits.shape[1])
        return self.rule.settle(logits, Drafts(*drafts), positions, Controls(*controls) if controls else None)


def mean_phases(phases: Sequence[Phases]) -> Phases:
    """Of several runs."""
    return Phases(*(mean(values) for values in zip(*map(astuple, phases), strict=True)))


def _wait(*arrays) -> float:
    started = time.perf_counter()
    mx.eval(*arrays)
    return time.perf_counter() - started
