"""What is typed while a reply comes waits for the next prompt, instead of being echoed into the middle of the reply."""

import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

LOCAL_MODES = 3  # where tcgetattr's list has them


@contextmanager
def unseen() -> Iterator[None]:
    """Turns the terminal's echo off; keys are kept, and Ctrl-C works as ever."""
    before = termios.tcgetattr(sys.stdin)
    silent = termios.tcgetattr(sys.stdin)
    silent[LOCAL_MODES] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
