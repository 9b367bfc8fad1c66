"""`mtp chat`: a conversation in the terminal. stdout has the replies; everything else goes to stderr."""

import re
from typing import TYPE_CHECKING

import typer

from mtp_cli import options
from mtp_cli.console import Output, note, stderr
from mtp_cli.conversation import Conversation, Turn
from mtp_cli.interrupt import Interrupt
from mtp_cli.line_reader import LineReader
from mtp_cli.pair import PairOptions, load_pair
from mtp_cli.sampling import SamplingOptions
from mtp_weights.errors import UserError

if TYPE_CHECKING:
    from mtp_mlx.reply import Piece

DEFAULT_MAX_TOKENS = 1024  # a long answer; a small model that repeats itself for ever ends there

HELP = """\
/help   h   show this
/clear  r   forget the conversation and begin anew
/exit   q   leave, as Ctrl-D does
Ctrl-C stops a reply and keeps what was said.
A line that begins with a blank is always a message."""
_EXIT, _CLEAR, _HELP = ("/exit", "/quit", "/bye", "q"), ("/clear", "r"), ("/help", "/?", "h")


def chat(
    system_prompt: options.SystemPrompt = None,
    model: options.Model = "demo",
    draft_model: options.DraftModel = "auto",
    no_draft: options.NoDraft = False,
    num_draft_tokens: options.NumDraftTokens = "auto",
    max_tokens: options.MaxTokens = DEFAULT_MAX_TOKENS,
    prefill_step_size: options.PrefillStepSize = 512,
    temp: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    xtc_probability: options.XtcProbability = 0.0,
    xtc_threshold: options.XtcThreshold = 0.1,
    seed: options.Seed = None,
    draft_temp: options.DraftTemperature = None,
    lenient: options.Lenient = False,
    repetition_penalty: options.RepetitionPenalty = None,
    repetition_context_size: options.RepetitionContextSize = 20,
    presence_penalty: options.PresencePenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
) -> None:
    """Talk with a model. /help shows what can be typed."""
    pair_options = PairOptions.of(model, draft_model, no_draft, num_draft_tokens)
    sampling = SamplingOptions(
        temp,
        top_p,
        top_k,
        min_p,
        xtc_probability,
        xtc_threshold,
        seed,
        draft_temp,
        lenient,
        repetition_penalty,
        repetition_context_size,
        presence_penalty,
        frequency_penalty,
    ).check()
    pair = load_pair(pair_options)
    sampling = sampling.of_model(pair.model)
    settings = {"max_tokens": max_tokens, "prefill_step_size": prefill_step_size, **sampling.arguments()}
    session = Session(Conversation(pair, system_prompt, settings), sampling)
    session.run()
    if session.failed and not session.reader.is_interactive:
        raise typer.Exit(1)


class Session:
    """Reads lines and answers them, until the end of input.

    Attributes:
        failed: whether a line could not be answered.
    """

    def __init__(self, conversation: Conversation, sampling: SamplingOptions):
        self.conversation, self.sampling = conversation, sampling
        self.reader, self.output, self.failed = LineReader(">>> "), Output(), False

    def run(self) -> None:
        if self.reader.is_interactive:
            self._greet()
        while (line := self.reader.read()) is not None:
            if line in _EXIT:
                return
            self._handle(line)
        if self.reader.is_interactive:
            stderr().print()  # Ctrl-D and Ctrl-C leave the cursor behind the prompt

    def _greet(self) -> None:
        pair = self.conversation.pair
        drafter = f"drafts a round: {pair.options.num_draft_tokens}" if pair.drafts else "no drafts"
        note(f"{pair.options.model} · {drafter} · {self.sampling.describe()} · /help for commands, Ctrl-D leaves")

    def _handle(self, line: str) -> None:
        """Does what a line asks for; an error leaves the conversation as it was."""
        try:
            if line in _CLEAR:
                self.conversation.clear()
                note("the conversation begins anew")
            elif line in _HELP:
                note(HELP)
            elif re.fullmatch(r"/\w*", line.rstrip()):
                raise UserError("no such command", given=line.rstrip(), fix="/help lists them")
            elif line.strip():
                self._answer(line)
        except UserError as error:
            self.failed = True
            stderr().print(f"error: {error}", style="red", markup=False, soft_wrap=True)

    def _answer(self, text: str) -> None:
        with Interrupt() as interrupt:
            turn = self.conversation.turn(text, interrupt, self._show)
        if turn.last is not None:
            self.output.write("\n")
        note(_statistics(turn, self.conversation))

    def _show(self, piece: "Piece") -> None:
        self.output.write(piece.text, "dim" if piece.is_thought else "")


def _statistics(turn: Turn, conversation: Conversation) -> str:
    """One line on a turn."""
    last = turn.last
    if last is None:
        return "stopped before the reply began; the message is not part of the conversation"
    parts = [f"{last.generation_tokens} tokens"]
    if last.generation_tokens > 1:
        parts.append(f"{last.generation_tps:.1f} tok/s")
    if last.speculation.drafted:
        parts.append(f"{last.speculation.mean_acceptance_length:.2f} tokens a round")
    parts.append(f"prompt {last.prompt_tokens} new + {turn.kept} kept")
    if turn.stopped:
        parts.append("stopped")
    elif last.finish_reason == "length":
        limit = conversation.settings["max_tokens"]
        cut = last.generation_tokens == limit
        parts.append(f"cut off at --max-tokens {limit}" if cut else "the context is full, /clear begins anew")
    return " · ".join(parts)
