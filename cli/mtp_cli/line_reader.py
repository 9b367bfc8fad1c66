"""Lines of input: edited with a prompt on a terminal, plain lines otherwise."""

import contextlib
import sys


class LineReader:
    """Reads stdin line by line. Bytes that are not UTF-8 become U+FFFD instead of an error.

    Attributes:
        is_interactive: whether a person sits at a terminal.
    """

    def __init__(self, prompt: str):
        self._prompt = prompt
        self.is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
        sys.stdin.reconfigure(errors="replace")
        if self.is_interactive:
            with contextlib.suppress(ImportError):  # input() edits lines with it; not every Python is built with it
                import readline  # noqa: F401

    def read(self) -> str | None:
        """The next line without its end, or None at the end of input (Ctrl-D) or on Ctrl-C."""
        try:
            return input(self._prompt) if self.is_interactive else self._read_plain()
        except (EOFError, KeyboardInterrupt):
            return None

    def _read_plain(self) -> str | None:
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None
