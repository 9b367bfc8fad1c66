"""`mtp` in a real pseudo-terminal."""

import re
import sys

import pytest

from tests.mtp_cli.terminal import CTRL_C, CTRL_D, Terminal

MTP = [sys.executable, "-c", "from mtp_cli.main import run; run()"]
PROMPT = r"(^|\n)>>>$"


@pytest.fixture
def chat(pair, tmp_path):
    terminal = Terminal([*MTP, "chat", *pair.options, "--num-draft-tokens", "2", "--max-tokens", "150"], tmp_path)
    terminal.expect(PROMPT)
    yield terminal
    terminal.close()


def test_turns_a_stopped_reply_another_turn_and_the_end(chat):
    assert re.search(r" · drafts a round: 2 · greedy · /help, Ctrl-D leaves\n>>>$", chat.text)

    chat.type("hello\r")
    shown = chat.expect(PROMPT)
    first = re.match(
        r" hello\n[a-z \n]+\n150 tokens · \d+\.\d tok/s · \d\.\d\d tokens a round · "
        r"prompt (\d+) new \+ 0 kept · cut off at --max-tokens 150\n>>>$",
        shown,
    )
    assert first, shown
    in_cache = int(first[1]) + 150 - 1

    chat.type("tell me more\r")
    shown = chat.expect(PROMPT)
    assert re.search(rf"new \+ {in_cache} kept · cut off", shown), shown

    chat.type("and more\r")
    chat.expect("[a-z]{5,} [a-z]+ ")
    chat.type(CTRL_C)
    shown = chat.expect(PROMPT)
    stopped = re.search(r"\n(\d+) tokens · .* prompt (\d+) new \+ (\d+) kept · stopped\n>>>$", shown)
    assert stopped and int(stopped[1]) < 150, shown
    in_cache = sum(int(count) for count in stopped.groups()) - 1

    chat.type("go on\r")
    shown = chat.expect(PROMPT)
    kept = re.search(r"new \+ (\d+) kept", shown)
    assert kept and in_cache - 8 <= int(kept[1]) <= in_cache, shown

    chat.type(CTRL_D)
    assert chat.wait() == 0
    assert "Traceback" not in chat.text and "error" not in chat.text


def test_ctrl_c_at_the_prompt_forgets_what_was_typed_and_says_how_to_leave(chat):
    chat.type("half a li" + CTRL_C)
    chat.expect("Ctrl-D leaves")
    chat.expect(PROMPT)
    chat.type(CTRL_D)
    assert chat.wait() == 0
    assert "Traceback" not in chat.text and "KeyboardInterrupt" not in chat.text


def test_ctrl_c_ends_generate_with_130_and_keeps_what_was_written(pair, tmp_path):
    terminal = Terminal([*MTP, "generate", "-p", "hello", "-m", "-1", *pair.options], tmp_path)
    terminal.expect("[a-z]{5,} [a-z]+ ")
    terminal.type(CTRL_C)
    assert terminal.wait() == 130
    assert "Traceback" not in terminal.text and "error" not in terminal.text
    terminal.close()
