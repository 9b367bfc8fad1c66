"""Where text goes: results to stdout, everything else to stderr; styled on a terminal, plain elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

# rich is imported where it is used: `mtp --help` does without it.
if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID
    from rich.status import Status

# C0 and C1.
_CONTROLS = {n: "\ufffd" for n in (*range(0x20), *range(0x7F, 0xA0)) if chr(n) not in "\t\n"}


def visible(text: str) -> str:
    """`text` without control characters that a terminal would obey, except tab and line feed."""
    return text.translate(_CONTROLS)


def stderr() -> "Console":
    """The console for progress and statistics."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def status(message: str) -> "Status":
    """Shows `message` on stderr while something takes its time; nothing where stderr is no terminal."""
    return stderr().status(f"{message} …")


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, gone when it is done; gives what to call with (done, total). Nothing without a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = stderr()
    with Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(what, visible=False)
        yield lambda done, total: progress.update(task, completed=done, total=total, visible=True)


@contextmanager
def transfer_bars() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each file on stderr; gives what to call, from any thread, with (file, bytes that are here, size).

    Without a terminal, a line for each file that is complete.
    """
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = stderr()
    tasks: dict[str, TaskID] = {}
    columns = [TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()]
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:

        def update(file: str, done: int, size: int) -> None:
            if file not in tasks:
                tasks[file] = progress.add_task(file, completed=done, total=size)
            progress.update(tasks[file], completed=done)
            if done == size and not console.is_terminal:
                note(f"{file}: {size / 1e6:.1f} MB")

        yield update


_noting: ContextVar[bool] = ContextVar("noting", default=True)


@contextmanager
def no_notes() -> Iterator[None]:
    """Nothing is noted meanwhile; errors still are."""
    token = _noting.set(False)
    try:
        yield
    finally:
        _noting.reset(token)


def note(message: str, console: "Console | None" = None) -> None:
    """One dim line on stderr; where it is too long for a terminal, it is broken between words.

    Args:
        console: that of a bar which is being shown, if there is one.
    """
    from rich.text import Text

    if not _noting.get():
        return
    console = console or stderr()
    console.print(Text(message, style="dim"), soft_wrap=not console.is_terminal)


class Output:
    """stdout: the exact text where it is piped; on a terminal without control characters, and styled where asked."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(highlight=False)
        self.is_terminal = self.console.is_terminal

    def write(self, text: str, style: str = "") -> None:
        """Writes `text` as it is, at once, without adding a line break."""
        if self.is_terminal:
            from rich.text import Text

            self.console.print(Text(visible(text), style), end="", soft_wrap=True)
        else:
            sys.stdout.write(text)
            sys.stdout.flush()


class PrefillBar:
    """A bar on stderr while a long prompt is processed; nothing for a short one, or without a terminal."""

    LONG = 1024  # tokens from which on it is worth a bar: two chunks

    def __init__(self) -> None:
        self._stack, self._update = ExitStack(), None

    def update(self, done: int, total: int) -> None:
        if self._update is None and total > self.LONG:
            self._update = self._stack.enter_context(progress_bar("reading"))
        if self._update is not None:
            self._update(done, total)

    def close(self) -> None:
        """Takes the bar away; can be called twice."""
        self._stack.close()
        self._update = None
