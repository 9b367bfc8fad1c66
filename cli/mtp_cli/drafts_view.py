"""A reply with each token coloured by where it came from: an accepted draft, or the target itself."""

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from mtp_cli.console import visible

if TYPE_CHECKING:
    from mtp_mlx import GenerationResponse

# From near to far: the first draft of a round is the surest. Black text on them reads well on light and dark screens.
ACCEPTED = ("#b8e994", "#82ddaa", "#74d7d0", "#82c4f5", "#9fb1f7", "#bda3f5", "#dc9cf0", "#f49ad4")
CORRECTED = "black on #ffb86b"
OWN = ""


def token_style(response: "GenerationResponse") -> str:
    """How a token is drawn."""
    if response.draft_position is not None:
        return _accepted(response.draft_position)
    return CORRECTED if response.corrects_draft else OWN


def legend() -> Text:
    """What the colours mean."""
    text = Text("accepted drafts, by position in their round ")
    for position in range(len(ACCEPTED)):
        last = position == len(ACCEPTED) - 1
        text.append(f" {position + 1}{'+' if last else ''} ", _accepted(position))
    text.append("\n")
    text.append(" corrected ", CORRECTED)
    text.append(" the target's token where a draft was rejected\n")
    text.append("uncoloured: the target's own token, after the last draft of a round")
    return text


class DraftsAnswer:
    """Writes an answer token by token, coloured, and breaks lines before a word that does not fit.

    Lines are broken here and not by the terminal, which would paint the rest of its new line in the token's colour.
    """

    def __init__(self, console: Console):
        self._console, self._column = console, 0

    def write(self, text: str, response: "GenerationResponse") -> None:
        line, *others = visible(text).expandtabs(4).split("\n")
        self._write_in_line(line, token_style(response))
        for line in others:
            self._break()
            self._write_in_line(line, token_style(response))

    def finish(self) -> None:
        if self._column:
            self._break()

    def _write_in_line(self, text: str, style: str) -> None:
        width = self._console.width
        if self._column + cell_len(text) > width:
            self._break()
            text = text.removeprefix(" ")
        while cell_len(text) > width:
            self._console.print(Text(text[: width // 2], style), soft_wrap=True)
            text = text[width // 2 :]
        self._console.print(Text(text, style), end="", soft_wrap=True)
        self._column += cell_len(text)

    def _break(self) -> None:
        self._console.print()
        self._column = 0


def _accepted(position: int) -> str:
    return f"black on {ACCEPTED[min(position, len(ACCEPTED) - 1)]}"
