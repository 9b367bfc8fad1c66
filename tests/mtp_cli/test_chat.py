"""`mtp chat` with piped input, and what a conversation keeps."""

import re
import signal

import pytest

from mtp_cli.conversation import ChatSettings, Conversation
from mtp_cli.interrupt import Interrupt
from mtp_cli.pair import PairOptions, load_pair
from mtp_mlx import generate
from mtp_mlx.chat_template import render
from mtp_weights.errors import UserError
from tests.mtp_cli.conftest import CONTEXT, mtp

LIMIT = ("--max-tokens", "20")


def statistics(result) -> list[tuple[int, int]]:
    """New and kept prompt tokens of each turn."""
    return [(int(new), int(kept)) for new, kept in re.findall(r"prompt (\d+) new \+ (\d+) kept", result.stderr)]


def test_each_line_gets_a_reply_and_nothing_else_is_on_stdout(pair):
    result = mtp("chat", *pair.options, *LIMIT, given="hello\nmore\n")
    assert result.exit_code == 0
    assert re.fullmatch(r"([a-z ]+\n){2}", result.stdout)
    (first_new, nothing), (second_new, kept) = statistics(result)
    assert nothing == 0 and kept == first_new + 20 - 1
    assert ">>>" not in result.stdout + result.stderr
    assert second_new < first_new + 20


def test_drafts_do_not_change_a_conversation(pair):
    lines = "hello\nmore\nand more\n"
    plain = mtp("chat", "--model", pair.target, "--no-draft", *LIMIT, given=lines)
    assert mtp("chat", *pair.options, *LIMIT, given=lines).stdout == plain.stdout
    assert "tokens a round" not in plain.stderr


def test_commands(pair):
    result = mtp("chat", *pair.options, *LIMIT, given="hello\nr\nhello\nh\n/nonsense\n\n   \nq\nnever read\n")
    first, second = result.stdout.splitlines()
    assert first == second
    assert [kept for _, kept in statistics(result)] == [0, 0]
    assert "the conversation begins anew\n" in result.stderr
    assert "/clear                forget the conversation and begin anew (r)\n" in result.stderr
    assert "error: no such command (given: /nonsense); /help lists them\n" in result.stderr
    assert result.exit_code == 1  # a script shall notice


def test_a_line_that_begins_with_a_blank_is_a_message(pair):
    result = mtp("chat", *pair.options, *LIMIT, given=" /exit\n/etc/passwd is a file\n/exit\n")
    assert len(result.stdout.splitlines()) == 2 and result.exit_code == 0


@pytest.mark.parametrize(
    "given", [b"caf\xe9 \xff\n", b"\x00\x01\x1b[31m\n", "東京 🙂 é\r\n".encode(), b"no end of line"]
)
def test_odd_input_gets_a_reply(pair, given):
    result = mtp("chat", *pair.options, *LIMIT, given=given)
    assert result.exit_code == 0 and result.exception is None
    assert len(result.stdout.splitlines()) == 1


def test_a_message_that_does_not_fit_is_refused_and_nothing_is_lost(pair):
    result = mtp("chat", *pair.options, *LIMIT, given="hello\n" + "x" * 100_000 + "\nmore\n")
    assert "error: the conversation must be shorter than the model's context of" in result.stderr
    assert len(result.stdout.splitlines()) == 2
    (first_new, _), (_, kept) = statistics(result)
    assert kept > first_new  # the second turn still has the first one before it
    assert result.exit_code == 1


def test_a_full_context_ends_the_reply_and_says_so(pair):
    result = mtp("chat", *pair.options, "--max-tokens", "-1", given="x" * (CONTEXT - 60) + "\n")
    assert "the context is full, /clear begins anew" in result.stderr


def test_the_system_prompt_stays_after_clear(pair):
    lines = "hello\n/clear\nhello\n"
    with_system = mtp("chat", *pair.options, *LIMIT, "--system-prompt", "be brief", given=lines).stdout.splitlines()
    assert with_system[0] == with_system[1]
    assert with_system[0] != mtp("chat", *pair.options, *LIMIT, given="hello\n").stdout.splitlines()[0]


@pytest.fixture(scope="module")
def loaded(pair):
    return load_pair(PairOptions.of(pair.target, pair.drafter, no_draft=False, num_draft_tokens="3"))


class Shown:
    """Collects pieces, and does something after `count` of them."""

    def __init__(self, count=0, action=lambda: None):
        self.pieces, self.count, self.action = [], count, action

    def __call__(self, piece, response) -> None:
        self.pieces.append(piece)
        if len(self.pieces) == self.count:
            self.action()

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


def cold(loaded, conversation, message: str) -> str:
    """The reply that an empty cache would give."""
    messages = [*conversation.messages, {"role": "user", "content": message}]
    return generate(
        loaded.model, loaded.tokenizer, render(loaded.tokenizer, messages), max_tokens=conversation.settings.max_tokens
    )


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def twice() -> None:
    ctrl_c()
    ctrl_c()


@pytest.mark.parametrize("stop", [ctrl_c, twice])
def test_a_stopped_reply_stays_and_the_next_turn_equals_a_cold_one(loaded, stop):
    conversation = Conversation(loaded, None, ChatSettings(60))
    shown = Shown(5, stop)
    with Interrupt() as interrupt:
        turn = conversation.turn("hello", interrupt, shown)
    assert turn.stopped and 0 < turn.last.generation_tokens < 60
    assert conversation.messages == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": shown.text},
    ]
    for message in ("go on", "and on"):
        expected, shown = cold(loaded, conversation, message), Shown()
        with Interrupt() as interrupt:
            turn = conversation.turn(message, interrupt, shown)
        assert shown.text == expected and not turn.stopped


def test_when_mlx_fails_the_conversation_stays_and_goes_on(loaded):
    def fail() -> None:
        raise RuntimeError("[malloc] Unable to allocate 9 bytes.")

    conversation = Conversation(loaded, None, ChatSettings(20))
    with Interrupt() as interrupt:
        conversation.turn("hello", interrupt, Shown())
        before = list(conversation.messages)
        with pytest.raises(UserError, match="MLX could not go on with the reply .given: .malloc. Unable"):
            conversation.turn("lost", interrupt, Shown(3, fail))
        assert conversation.messages == before
        expected, shown = cold(loaded, conversation, "go on"), Shown()
        conversation.turn("go on", interrupt, shown)
    assert shown.text == expected


def test_stopped_before_the_reply_begins_the_message_does_not_stay(loaded):
    conversation = Conversation(loaded, None, ChatSettings(20))
    with Interrupt() as interrupt:
        conversation.turn("hello", interrupt, Shown())
        before = list(conversation.messages)
        ctrl_c()
        turn = conversation.turn("lost", interrupt, Shown())
    assert turn.last is None and turn.stopped
    assert conversation.messages == before
    expected, shown = cold(loaded, conversation, "go on"), Shown()
    with Interrupt() as interrupt:
        conversation.turn("go on", interrupt, shown)
    assert shown.text == expected


def test_ctrl_c_is_itself_again_outside_a_reply():
    with Interrupt():
        pass
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()
