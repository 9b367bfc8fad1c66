"""Ctrl-C as a wish to stop at the next safe place, so that what was generated, and its cache, stay whole."""

import signal
from types import FrameType


class StoppedError(Exception):
    """Raised at a safe place, after Ctrl-C."""


class Interrupt:
    """While entered, the first Ctrl-C sets `requested`; a second one raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> "Interrupt":
        self.requested = False
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def check(self, *_: object) -> None:
        """Raises StoppedError where a stop is requested; can be a progress callback."""
        if self.requested:
            raise StoppedError

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
