"""Thoughts and answer on a terminal and in a pipe; drafts in colours."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from mtp_cli.console import Output
from mtp_cli.drafts_view import ACCEPTED, CORRECTED, OWN, DraftsAnswer, legend, token_style
from mtp_cli.replies import PipedReply, PlainAnswer, TerminalReply
from mtp_mlx.reply import Piece

PIECES = [Piece("Well", True), Piece(", \x1bso.", True), Piece("Yes", False), Piece(" 東京 🙂.", False)]


def console(**options) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=20, **options)


def test_a_pipe_gets_the_answer_alone_and_thoughts_go_to_stderr(capsys):
    view = PipedReply(Output())
    for piece in PIECES:
        view.show(piece, None)
    view.finish()
    view.finish()
    shown = capsys.readouterr()
    assert shown.out == "Yes 東京 🙂.\n"
    assert shown.err == "Well, \x1bso."


@pytest.mark.parametrize("unfold", [False, True])
def test_on_a_terminal_thoughts_are_dim_and_fold_into_a_line(unfold):
    screen = console()
    view = TerminalReply(screen, _Writer(screen), unfold)
    for piece in PIECES:
        view.show(piece, None)
    view.finish()
    shown = screen.file.getvalue()
    folded, answer = shown.rsplit("\n", 1)
    assert answer == "Yes 東京 🙂."
    assert "\x1b[2" in folded and "\x1bso" not in folded  # dim, and no control character of the text's
    assert ("▸ thought for " in folded) is not unfold


class _Writer:
    def __init__(self, screen: Console):
        self._screen = screen

    def write(self, text, response) -> None:
        self._screen.print(text, end="")

    def finish(self) -> None:
        pass


def test_thoughts_without_an_answer_are_shown_too():
    screen = console()
    view = TerminalReply(screen, PlainAnswer(Output()), False)
    view.show(PIECES[0], None)
    view.finish()
    assert "▸ thought for " in screen.file.getvalue()


def response(position=None, corrects=False):
    return SimpleNamespace(draft_position=position, corrects_draft=corrects)


def test_tokens_are_coloured_by_where_they_came_from():
    assert token_style(response()) == OWN
    assert token_style(response(corrects=True)) == CORRECTED
    styles = [token_style(response(position)) for position in range(12)]
    assert len(set(styles)) == len(ACCEPTED) and styles[-1] == styles[len(ACCEPTED) - 1]
    explained = {str(span.style) for span in legend().spans}
    assert explained == {*styles, CORRECTED}


def test_lines_of_coloured_tokens_break_before_the_colour_begins():
    screen = console()
    answer = DraftsAnswer(screen)
    for n, word in enumerate(["One", " two", " three", " four", " fives", "\nsix", " " * 3, "x" * 50]):
        answer.write(word, response(n % 3))
    answer.finish()
    plain = console(no_color=True)
    assert plain.no_color
    lines = _without_styles(screen.file.getvalue()).split("\n")
    assert lines == ["One two three four", "fives", "six   ", "x" * 10, "x" * 10, "x" * 10, "x" * 20, ""]
    assert all(line.endswith("\x1b[0m") for line in screen.file.getvalue().split("\n")[:-1])


def _without_styles(text: str) -> str:
    from rich.text import Text

    return Text.from_ansi(text + "|").plain[:-1]
