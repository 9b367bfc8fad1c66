"""A part of the screen that changes while text comes in: the newest lines of it, redrawn a few times a second."""

import time
from collections.abc import Callable, Iterable

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment

FRAME = 1 / 12  # seconds between two drawings: often enough to look like a stream
SHARE = 10  # drawing takes at most one part in so many of the time


class LiveTail:
    """Shows the last lines of something that grows, on the lines below what was printed.

    Args:
        console: a terminal's.
        lines: how many to show at most; None for as many as the screen has.
    """

    def __init__(self, console: Console, lines: int | None = None):
        self._console, self._lines, self._next = console, lines, 0.0
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            vertical_overflow="visible",
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def is_due(self) -> bool:
        """Whether it is time for another drawing."""
        return time.monotonic() >= self._next

    def update(self, make: Callable[[], RenderableType]) -> None:
        """Draws what `make` gives, if it is time."""
        if self.is_due():
            self.draw(make())

    def draw(self, content: RenderableType, above: Iterable[RenderableType] = ()) -> None:
        """Draws `content`, now. Whatever is `above` it is printed there to stay."""
        began = time.monotonic()
        if not self._live.is_started:
            self._live.start()
        for renderable in above:
            self._console.print(renderable)
        self._live.update(_Tail(content, self._height()), refresh=True)
        now = time.monotonic()
        self._next = max(began + FRAME, now + SHARE * (now - began))

    def finish(self, content: Iterable[RenderableType] = ()) -> None:
        """Takes the changing part away, and prints `content` to stay."""
        if self._live.is_started:
            self._live.stop()
        for renderable in content:
            self._console.print(renderable)

    def _height(self) -> int:
        screen = self._console.size.height - 2
        return max(1, screen if self._lines is None else min(self._lines, screen))


class _Tail:
    """The last lines of something."""

    def __init__(self, content: RenderableType, height: int):
        self._content, self._height = content, height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._content, options.update(height=None), pad=False)
        for line in lines[-self._height :]:
            yield from line
            yield Segment.line()
