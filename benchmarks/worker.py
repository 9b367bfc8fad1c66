"""An engine in a process of its own, loaded and warm, that runs one prompt at a time when it is told to."""

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import mlx.core as mx

import mtp_weights
from benchmarks.engines import Engine
from mtp_mlx.bench.runs import Run

MOST_TRIES = 8  # a run in which something was compiled for the first time is done again, at most so often


class Worker:
    """The parent's side of a process. Use as a context manager.

    Args:
        make_engine: called in the new process, with `args`.
        run: what each `run` calls there, with the engine first; one generation by default.

    Attributes:
        name: of the engine, with the BLAS that it computes on.
    """

    def __init__(self, make_engine: Callable[..., Any], *args: Any, run: Callable[..., Any] | None = None):
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make_engine, args, run or warm_run), daemon=True)
        self._process.start()
        theirs.close()
        self.name: str = self._connection.recv()

    def run(self, prompt: Any, num_tokens: int, drafts: int | str = 0) -> Any:
        """One greedy generation from an empty cache: a `Run`, where nothing else was asked for."""
        self._connection.send((prompt, num_tokens, drafts))
        return self._connection.recv()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: Any) -> None:
        self._connection.close()
        self._process.join()


def _serve(connection: Connection, make_engine: Callable[..., Any], args: tuple, run: Callable[..., Any]) -> None:
    engine = make_engine(*args)
    connection.send(f"{engine.name} ({mtp_weights.BLAS.name})")
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        connection.send(run(engine, *request))


def warm_run(engine: Engine, prompt: list[int], num_tokens: int, drafts: int | str) -> Run:
    """`timed`, from compiled functions only."""
    for _ in range(MOST_TRIES):
        traces = engine.traces
        run = timed(engine, prompt, num_tokens, drafts)
        if engine.traces == traces:
            break
    return run


def timed(engine: Engine, prompt: list[int], num_tokens: int, drafts: int | str) -> Run:
    """Runs and times one generation: up to the first token, and from there to the last."""
    mx.synchronize()
    mx.reset_peak_memory()
    tokens, times = [], []
    started = time.perf_counter()
    for token in engine.tokens(prompt, num_tokens, drafts):
        tokens.append(token)
        times.append(time.perf_counter())
    return Run(tokens, times[0] - started, times[-1] - times[0], mx.get_peak_memory(), engine.speculation)
