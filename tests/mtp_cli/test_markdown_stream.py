"""Markdown that streams in looks in the end as if it had come at once, and nothing is shown twice."""

import io
import random

import pyte
import pytest
from rich.console import Console

from mtp_cli import live_tail
from mtp_cli.markdown_stream import MarkdownAnswer, finished_blocks

TEXT = (
    """\
# A heading

Some *emphasised* text with `code`, a <b>tag</b> and List<int>, long enough to be wrapped where the screen ends.
Second line.

1. one
2. two
   - nested

   still two

```python
def f(x):
    return x  # 東京 🙂

"""
    + "".join(f"print({n})\n" for n in range(60))
    + """\
```

| a | b |
|---|---|
| 1 | 2 |

> quoted

Setext
======
last"""
)


def screen(pieces: list[str]) -> list[str]:
    """The lines that a terminal of 60 × 12 shows in the end, and those above them."""
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=True, width=60, height=12, color_system="truecolor", legacy_windows=False
    )
    answer = MarkdownAnswer(console)
    for piece in pieces:
        answer.write(piece, None)
    answer.finish()
    terminal = pyte.HistoryScreen(60, 12, history=10_000, ratio=0.01)
    pyte.Stream(terminal).feed(file.getvalue().replace("\n", "\r\n"))
    above = ["".join(line[x].data for x in range(60)) for line in terminal.history.top]
    return [line.rstrip() for line in [*above, *terminal.display]]


def without_end(lines: list[str]) -> list[str]:
    return "\n".join(lines).rstrip().split("\n")


@pytest.fixture
def every_piece_is_drawn(monkeypatch):
    monkeypatch.setattr(live_tail, "FRAME", 0)
    monkeypatch.setattr(live_tail, "SHARE", 0)


@pytest.mark.parametrize("seed", range(4))
def test_however_it_comes_the_screen_is_the_same_and_nothing_is_there_twice(every_piece_is_drawn, seed):
    rng, pieces, at = random.Random(seed), [], 0
    while at < len(TEXT):
        size = rng.choice([1, 3, 7, 40])
        pieces.append(TEXT[at : at + size])
        at += size
    lines = without_end(screen(pieces))
    assert lines == without_end(screen([TEXT]))
    assert [line.strip() for line in lines if "print(" in line] == [f"print({n})" for n in range(60)]


def test_html_and_controls_are_shown_as_text():
    lines = screen(["a <b>tag</b> <script> \x1b[2J\x07"])
    assert lines[0] == "a <b>tag</b> <script> \ufffd[2J\ufffd"


@pytest.mark.parametrize(
    ("text", "blocks", "rest"),
    [
        ("", [], ""),
        ("one", [], "one"),
        ("one\n\ntwo", [], "one\n\ntwo"),  # half a line may still become something else
        ("one\n\ntwo\n", ["one\n\n"], "two\n"),
        ("one\n#", [], "one\n#"),
        ("one\n# two\n", ["one\n"], "# two\n"),
        ("- a\n\n- b\n", [], "- a\n\n- b\n"),
        ("- a\n\nb\n", ["- a\n\n"], "b\n"),
        ("```\na\n\n# b\n", [], "```\na\n\n# b\n"),
        ("```\na\n```\nb\n", ["```\na\n```\n"], "b\n"),
        ("one\n\n---\n\ntwo\n", ["one\n\n", "---\n\n"], "two\n"),
    ],
)
def test_a_block_is_finished_when_another_one_has_begun(text, blocks, rest):
    assert finished_blocks(text) == (blocks, rest)
