"""Draws docs/show-drafts.svg: replies of the demo pair with each token coloured by where it came from.

python docs/show_drafts.py
"""

import io
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from mtp_cli.conversation import ChatSettings, Conversation, Turn
from mtp_cli.drafts_view import DraftsAnswer, legend
from mtp_cli.interrupt import Interrupt
from mtp_cli.pair import PairOptions, load_pair
from mtp_cli.sampling import SamplingOptions
from mtp_cli.statistics import SessionStatistics, turn_line

QUESTIONS = ("Do you like music?", "Tell me a story.", "Write a function that reads a file.")
SAMPLING = SamplingOptions(temp=0.6, seed=3)
MAX_TOKENS = 120
PICTURE = Path(__file__).with_name("show-drafts.svg")


def main() -> None:
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    pair = load_pair(PairOptions.of("demo", "auto", no_draft=False, num_draft_tokens="4"))
    conversation, statistics = (
        Conversation(pair, None, ChatSettings(MAX_TOKENS, sampling=SAMPLING)),
        SessionStatistics(),
    )
    statistics.measure_plain(pair)
    _answer(conversation, QUESTIONS[0], DraftsAnswer(Console(file=io.StringIO())))  # traces and warms up
    conversation.clear()
    console.print(legend())
    for question in QUESTIONS:
        console.print(f"\n[dim]>>>[/] {question}")
        answer = DraftsAnswer(console)
        turn = _answer(conversation, question, answer)
        statistics.add(turn)
        console.print(Text(turn_line(turn, statistics, MAX_TOKENS), "dim"))
    PICTURE.write_text(console.export_svg(title="mtp chat --show-drafts", theme=MONOKAI), encoding="utf-8")


def _answer(conversation: Conversation, question: str, answer: DraftsAnswer) -> Turn:
    with Interrupt() as interrupt:
        turn = conversation.turn(question, interrupt, lambda piece, response: answer.write(piece.text, response))
    answer.finish()
    return turn


if __name__ == "__main__":
    main()
