"""How a reply is shown while it comes: the text alone where it is piped, with thoughts folded on a terminal."""

import time
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, RenderableType
from rich.text import Text

from mtp_cli.console import Output, stderr, visible
from mtp_cli.live_tail import LiveTail

if TYPE_CHECKING:
    from mtp_mlx import GenerationResponse
    from mtp_mlx.reply import Piece

THOUGHT_LINES = 6  # of the thoughts that are shown while they come


class ReplyView(Protocol):
    """Shows one reply."""

    def show(self, piece: "Piece", response: "GenerationResponse") -> None:
        """Shows the next piece, which became certain with `response`'s token."""

    def finish(self) -> None:
        """Ends the reply, with the cursor at the beginning of a line. Can be called twice."""


class PipedReply:
    """stdout gets exactly the answer, and a line break after it; thoughts go to stderr."""

    def __init__(self, output: Output):
        self._output, self._begun = output, False

    def show(self, piece: "Piece", response: "GenerationResponse") -> None:
        self._begun = True
        if piece.is_thought:
            stderr().print(Text(piece.text, "dim"), end="", soft_wrap=True)
        else:
            self._output.write(piece.text)

    def finish(self) -> None:
        if self._begun:
            self._output.write("\n")
        self._begun = False


class AnswerWriter(Protocol):
    """Shows the answer of a reply on a terminal."""

    def write(self, text: str, response: "GenerationResponse") -> None: ...

    def finish(self) -> None: ...


class TerminalReply:
    """Thoughts dimmed, and folded into one line when they end; then the answer, as `answer` writes it.

    Args:
        unfold: whether thoughts stay to be read.
    """

    def __init__(self, console: Console, answer: AnswerWriter, unfold: bool):
        self._answer, self._thoughts = answer, _Thoughts(console, unfold)

    def show(self, piece: "Piece", response: "GenerationResponse") -> None:
        if piece.is_thought:
            self._thoughts.write(piece.text)
        else:
            self._thoughts.finish()
            self._answer.write(piece.text, response)

    def finish(self) -> None:
        self._thoughts.finish()
        self._answer.finish()


class _Thoughts:
    """The newest lines of the thoughts while they come; afterwards one line, or all of them."""

    def __init__(self, console: Console, unfold: bool):
        self._console, self._unfold = console, unfold
        self._tail: LiveTail | None = None

    def write(self, text: str) -> None:
        if self._tail is None:
            self._text, self._began = "", time.monotonic()
            self._tail = LiveTail(self._console, THOUGHT_LINES)
        self._text += visible(text)
        self._tail.update(lambda: thoughts(self._text))

    def finish(self) -> None:
        if self._tail is None:
            return
        self._tail.finish()
        self._tail = None
        seconds = time.monotonic() - self._began
        folded = Text(f"▸ thought for {seconds:.1f} s, {len(self._text.split())} words (/show thoughts)", "dim")
        self._console.print(thoughts(self._text) if self._unfold else folded)


def thoughts(text: str) -> RenderableType:
    """Thoughts, told from an answer by their look."""
    return Text(text.strip("\n"), "dim italic")


class PlainAnswer:
    """The text as it is."""

    def __init__(self, output: Output):
        self._output, self._begun = output, False

    def write(self, text: str, response: "GenerationResponse") -> None:
        self._output.write(text)
        self._begun = True

    def finish(self) -> None:
        if self._begun:
            self._output.write("\n")
        self._begun = False
