"""A session of the chat: reads lines, does what they ask for, shows the replies."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mtp_cli import commands
from mtp_cli.console import Output, PrefillBar, note, status, stderr
from mtp_cli.conversation import Conversation, Turn
from mtp_cli.drafts_view import DraftsAnswer, legend
from mtp_cli.interrupt import Interrupt
from mtp_cli.line_reader import EditedReader, PlainReader, Reader
from mtp_cli.media import refuse_media
from mtp_cli.replies import AnswerWriter, PipedReply, PlainAnswer, ReplyView, TerminalReply, thoughts
from mtp_cli.statistics import SessionStatistics, session_lines, turn_line
from mtp_cli.typed_ahead import unseen
from mtp_weights.errors import MisuseError, UserError

if TYPE_CHECKING:
    from mtp_mlx import GenerationResponse
    from mtp_mlx.reply import Piece


@dataclass
class Shown:
    """What /show switches."""

    drafts: bool = False
    markdown: bool = True
    thoughts: bool = False


class Session:
    """Reads lines and answers them, until the end of input.

    Args:
        conversation: which it goes on with.
        show_drafts: whether to begin with tokens coloured by where they came from.
        interactive: whether a person sits at a terminal.

    Attributes:
        ended: whether it was asked to end.
        failed: whether a line could not be answered.
    """

    def __init__(self, conversation: Conversation, show_drafts: bool, interactive: bool):
        self.conversation, self.interactive = conversation, interactive
        self.ended = self.failed = False
        self.statistics, self.shown = SessionStatistics(), Shown()
        self._output, self._last_thoughts = Output(), ""
        self._reader, self._show_drafts = _reader(interactive), show_drafts

    def run(self) -> None:
        if self.interactive:
            conversation = self.conversation
            facts = [conversation.pair.options.model, f"drafts a round: {self.drafts()}"]
            note(" · ".join([*facts, conversation.settings.sampling.describe()]))
            note("/help shows what can be typed, Ctrl-D leaves")
        if self._show_drafts:
            self.show("drafts")
        while not self.ended and (line := self._reader.read()) is not None:
            self._handle(line)

    def drafts(self) -> str:
        """How many tokens are drafted a round, in words."""
        pair = self.conversation.pair
        return str(pair.options.num_draft_tokens) if pair.drafts else "none"

    def answer(self, reply: Callable[..., Turn]) -> None:
        """Shows a reply: `reply` is the conversation's `turn` or `regenerate`, without its last arguments."""
        view, bar = self._view(), PrefillBar()

        def show(piece: "Piece", response: "GenerationResponse") -> None:
            bar.close()
            view.show(piece, response)

        try:
            with unseen() if self.interactive else nullcontext(), Interrupt() as interrupt:
                turn = reply(interrupt, show, bar.update)
        finally:
            bar.close()
            view.finish()
        self.statistics.add(turn)
        self._last_thoughts = turn.thoughts
        note(turn_line(turn, self.statistics, self.conversation.settings.max_tokens))

    def measure_plain(self) -> None:
        with status("measuring plain speed"):
            self.statistics.measure_plain(self.conversation.pair)

    def statistics_lines(self) -> list[str]:
        return session_lines(self.statistics, self.conversation)

    def show(self, what: str) -> None:
        """Switches what is shown; without a name, says what is."""
        shown = vars(self.shown)
        if what:
            if what not in shown:
                raise MisuseError("nothing that can be shown", given=what, fix=f"it is one of {', '.join(shown)}")
            self.shown = replace(self.shown, **{what: not shown[what]})
        note(" · ".join(f"{name} {'on' if on else 'off'}" for name, on in vars(self.shown).items()))
        if what == "drafts" and self.shown.drafts:
            self._explain_drafts()
        if what == "thoughts" and self.shown.thoughts and self._last_thoughts:
            stderr().print(thoughts(self._last_thoughts))

    def _explain_drafts(self) -> None:
        if not self._output.is_terminal:
            note("colours need a terminal")
            return
        stderr().print(legend(), soft_wrap=True)
        if self.statistics.plain.tps is None and self.conversation.pair.drafts:
            self.measure_plain()
            note(f"plain speed: {self.statistics.plain.tps:.1f} tok/s, measured just now without drafts")

    def _handle(self, line: str) -> None:
        """Does what a line asks for; an error leaves the conversation as it was."""
        try:
            found = commands.find(line)
            if found is not None:
                command, rest = found
                command.run(self, rest)
            elif line.strip():
                refuse_media(line)
                self.answer(lambda *how: self.conversation.turn(line, *how))
        except UserError as error:
            self.failed = True
            stderr().print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        except KeyboardInterrupt:  # in a command; a reply has its own way to stop
            if not self.interactive:
                raise
            note("stopped")

    def _view(self) -> ReplyView:
        if not self._output.is_terminal:
            return PipedReply(self._output)
        return TerminalReply(self._output.console, self._answer_writer(), self.shown.thoughts)

    def _answer_writer(self) -> AnswerWriter:
        if self.shown.drafts:
            return DraftsAnswer(self._output.console)
        if self.shown.markdown:
            from mtp_cli.markdown_stream import MarkdownAnswer

            return MarkdownAnswer(self._output.console)
        return PlainAnswer(self._output)


def _reader(interactive: bool) -> Reader:
    if not interactive:
        return PlainReader()
    from mtp_cli.line_editor import line_editor

    return EditedReader(line_editor(commands.COMMANDS).prompt)
