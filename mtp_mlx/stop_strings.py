"""Cuts streamed text at stop strings, without ever showing part of one."""

from collections.abc import Sequence

from mtp_mlx.errors import MisuseError


class StopStrings:
    """Passes text through until one of `strings` appears, holding back what may be the beginning of one.

    Args:
        strings: one or several; empty ones, and None, stop nothing.

    Raises:
        MisuseError: something else than strings.
    """

    def __init__(self, strings: str | Sequence[str] | None):
        self._strings = [s for s in ([strings] if isinstance(strings, str) else strings or ()) if s]
        other = next((s for s in self._strings if not isinstance(s, str)), None)
        if other is not None:
            raise MisuseError("stop must be strings", given=repr(other))
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Takes the next piece of text; gives what may be shown. Sets `stopped` when a stop string is complete."""
        text = self._held + text
        self._held = ""
        found = [at for at in (text.find(s) for s in self._strings) if at >= 0]
        if found:
            self.stopped = True
            return text[: min(found)]
        keep = max((_overlap(text, s) for s in self._strings), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return "" if self.stopped else held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
