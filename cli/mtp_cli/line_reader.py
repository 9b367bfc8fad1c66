"""Where messages come from: lines of a pipe, or what a person edits at a terminal."""

import sys
from collections.abc import Callable
from typing import Protocol

from mtp_cli.console import note


class Reader(Protocol):
    """A source of messages and commands."""

    def read(self) -> str | None:
        """The next one, or None at the end."""


class PlainReader:
    """Reads stdin line by line. Bytes that are not UTF-8 become U+FFFD instead of an error."""

    def __init__(self) -> None:
        sys.stdin.reconfigure(errors="replace")

    def read(self) -> str | None:
        """The next line without its end, or None at the end of input or on Ctrl-C."""
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            return None
        return line.rstrip("\r\n") if line else None


class EditedReader:
    """Reads what a person writes in a line editor.

    Args:
        edit: gives what was written; raises EOFError on Ctrl-D and KeyboardInterrupt on Ctrl-C.
    """

    def __init__(self, edit: Callable[[], str]):
        self._edit = edit

    def read(self) -> str | None:
        """What was written, without the quotes around several lines; empty on Ctrl-C; None on Ctrl-D."""
        try:
            return unquoted(self._edit())
        except KeyboardInterrupt:
            note("Ctrl-D leaves")
            return ""
        except EOFError:
            return None


QUOTES = '"""'


def is_open(text: str) -> bool:
    """Whether `text` begins several lines in triple quotes and has not ended them."""
    text = text.strip()
    return text.startswith(QUOTES) and (len(text) < 2 * len(QUOTES) or not text.endswith(QUOTES))


def unquoted(text: str) -> str:
    """`text` without the triple quotes around it. A command in quotes is a message: it gets a blank before it."""
    stripped = text.strip()
    if not stripped.startswith(QUOTES) or is_open(text):
        return text
    inner = stripped[len(QUOTES) : -len(QUOTES)].strip("\n")
    return f" {inner}" if inner.startswith("/") or len(inner) == 1 else inner
