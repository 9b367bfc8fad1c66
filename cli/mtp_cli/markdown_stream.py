"""Markdown while it streams in: every finished block is printed once and stays; only the open one is drawn again."""

from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Heading, Markdown
from rich.segment import Segment

from mtp_cli.console import visible
from mtp_cli.live_tail import LiveTail

if TYPE_CHECKING:
    from mtp_mlx import GenerationResponse

FENCES = ("```", "~~~")

# HTML stays what it is, text: rich would leave it out.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


class MarkdownAnswer:
    """Writes an answer as Markdown on a terminal."""

    def __init__(self, console: Console):
        self._tail = LiveTail(console)
        self._open, self._printed = "", False  # the text of the block that may still grow

    def write(self, text: str, response: "GenerationResponse") -> None:
        self._open += visible(text)
        if self._tail.is_due():
            finished, self._open = finished_blocks(self._open)
            above = self._to_stay(finished)
            self._tail.draw(_Block(_growing(self._open), self._printed), above)

    def finish(self) -> None:
        finished, rest = finished_blocks(self._open + "\n")
        self._tail.finish(self._to_stay([*finished, rest] if rest.strip() else finished))
        self._open, self._printed = "", False

    def _to_stay(self, blocks: list[str]) -> list[RenderableType]:
        shown = [_Block(block, self._printed or n > 0) for n, block in enumerate(blocks)]
        self._printed = self._printed or bool(blocks)
        return shown


def finished_blocks(text: str) -> tuple[list[str], str]:
    """Splits Markdown at the beginning of its last block: only that one can still become something else.

    Only whole lines are looked at, because half a line can begin another block than the whole one.
    """
    lines = text.splitlines(keepends=True)
    complete = len(lines) if text.endswith("\n") else len(lines) - 1
    tokens = _PARSER.parse("".join(lines[:complete]))
    starts = [token.map[0] for token in tokens if token.level == 0 and token.map is not None]
    starts = [0, *starts[1:]]
    blocks = ["".join(lines[start:end]) for start, end in zip(starts, starts[1:], strict=False)]
    return blocks, "".join(lines[starts[-1] :])


def _growing(block: str, lines: int = 200) -> str:
    """What has to be drawn of a block that still grows: of long code, the end."""
    if not block.lstrip().startswith(FENCES) or block.count("\n") <= lines:
        return block
    fence, *code = block.splitlines(keepends=True)
    return fence + "".join(code[-lines:])


class _Block:
    """A block, and an empty line before it where it follows another."""

    def __init__(self, text: str, after_another: bool):
        self._text, self._after_another = text, after_another

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(_Markdown(self._text), options.update(height=None), pad=False)
        shown = [n for n, line in enumerate(lines) if not _is_empty(line)]
        lines = lines[shown[0] : shown[-1] + 1] if shown else []  # rich puts empty lines around some blocks
        for line in [[], *lines] if self._after_another and lines else lines:
            yield from line
            yield Segment.line()


def _is_empty(line: list[Segment]) -> bool:
    """Whether nothing is to be seen of a line, not even a background."""
    return all(not part.text.strip() and (part.style is None or part.style.bgcolor is None) for part in line)


class _Heading(Heading):
    """At the left, as terminals are read; rich centres it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        self.text.stylize("bold")
        yield self.text


class _Markdown(Markdown):
    elements = {**Markdown.elements, "heading_open": _Heading}

    def __init__(self, text: str):
        super().__init__("", hyperlinks=False)
        self.markup, self.parsed = text, _PARSER.parse(text)
