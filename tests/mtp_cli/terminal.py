"""A program in a real pseudo-terminal, driven as a person would: wait for what it shows, then type."""

import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Sequence

CTRL_C, CTRL_D = "\x03", "\x04"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Runs `command` with a pseudo-terminal as its controlling terminal.

    Attributes:
        text: everything shown so far, without escape sequences.
    """

    def __init__(self, command: Sequence[str]):
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
        )
        os.close(slave)
        self._raw, self._read = b"", 0

    @property
    def text(self) -> str:
        return _ESCAPES.sub("", self._raw.decode("utf-8", "replace")).replace("\r", "")

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def expect(self, pattern: str, seconds: float = 60) -> str:
        """Waits until new output matches `pattern`; gives the output since the last match, up to its end."""
        deadline = time.monotonic() + seconds
        while (match := re.compile(pattern).search(self.text, self._read)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.text[self._read :]!r}"
            assert self._receive(), f"it ended without {pattern!r}: {self.text[self._read :]!r}"
        shown = self.text[self._read : match.end()]
        self._read = match.end()
        return shown

    def wait(self) -> int:
        """Waits until the program ends; gives its exit code."""
        while self._receive():
            pass
        return self._process.wait(30)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def _receive(self) -> bool:
        """Takes in what is shown next; False when the program has closed the terminal."""
        if not select.select([self._master], [], [], 0.2)[0]:
            return self._process.poll() is None
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux says so when the other side is closed
            return False
        self._raw += data
        return bool(data)
