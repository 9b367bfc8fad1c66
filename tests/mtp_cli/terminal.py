"""A program in a real pseudo-terminal, driven as a person would: wait for what it shows, then type."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path

import pyte

CTRL_C, CTRL_D, ALT_ENTER = "\x03", "\x04", "\x1b\r"
PAUSE = 0.2  # seconds


class Terminal:
    """Runs `command` with a pseudo-terminal of 120 × 40 as its controlling terminal.

    Args:
        state: the home and state directory of whoever sits there.
    """

    def __init__(self, command: Sequence[str], state: Path):
        self._master, slave = pty.openpty()
        self._screen = pyte.HistoryScreen(120, 40, history=100_000, ratio=0.01)
        self._screen.write_process_input = self.type  # answers to where the cursor is
        self._stream, self._read = pyte.ByteStream(self._screen), 0
        self._set_size()
        self._process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": str(state), "HOME": str(state)},
        )
        os.close(slave)

    @property
    def text(self) -> str:
        """What a person sees and can scroll back to, without the blanks at the ends of lines."""
        columns = range(self._screen.columns)
        above = ("".join(line[x].data for x in columns) for line in self._screen.history.top)
        return "\n".join(line.rstrip() for line in [*above, *self._screen.display]).rstrip()

    def colours(self, text: str) -> set[str]:
        """The background colours of the characters of the last line on the screen that is `text`."""
        row = max(row for row, line in enumerate(self._screen.display) if line.rstrip() == text)
        return {self._screen.buffer[row][x].bg for x in range(len(text))}

    def resize(self, columns: int, lines: int) -> None:
        """Changes the size; everything on the screen is new then."""
        self._screen.resize(lines, columns)
        self._read = 0
        self._set_size()

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def paste(self, text: str) -> None:
        """As a terminal pastes: marked as such."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    def expect(self, pattern: str, seconds: float = 60) -> str:
        """Waits until something new on the screen matches `pattern`; gives what is new, up to the end of the match."""
        patience = seconds / PAUSE  # counted in pauses, not by the clock: the machine may stop this program for a while
        while (match := re.compile(pattern).search(self.text, self._read)) is None:
            shown = self._receive()
            assert shown is not None, f"it ended without {pattern!r}: {self.text[self._read :]!r}"
            patience -= not shown
            assert patience > 0, f"no {pattern!r} in {self.text[self._read :]!r}"
        shown = self.text[self._read : match.end()]
        self._read = match.end()
        return shown

    def shows(self, pattern: str) -> None:
        """Waits until the screen as a whole matches `pattern`; what is new stays new."""
        read, self._read = self._read, 0
        self.expect(pattern)
        self._read = read

    def wait(self) -> int:
        """Waits until the program ends; gives its exit code."""
        while self._receive() is not None:
            pass
        return self._process.wait(30)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def _set_size(self) -> None:
        size = struct.pack("HHHH", self._screen.lines, self._screen.columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def _receive(self) -> bytes | None:
        """Takes in what is shown next, nothing where a pause goes by; None when the program has closed the terminal."""
        if not select.select([self._master], [], [], PAUSE)[0]:
            return b"" if self._process.poll() is None else None
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux says so when the other side is closed
            return None
        self._stream.feed(data)
        return data or None
