"""`mtp` in a real pseudo-terminal."""

import re
import sys
import time

import pytest

from tests.mtp_cli.terminal import ALT_ENTER, CTRL_C, CTRL_D, Terminal

MTP = [sys.executable, "-c", "from mtp_cli.main import run; run()"]
PROMPT = r"(^|\n)>>>$"


@pytest.fixture
def chat(pair, tmp_path):
    terminal = Terminal([*MTP, "chat", *pair.options, "--num-draft-tokens", "2", "--max-tokens", "150"], tmp_path)
    terminal.expect(PROMPT)
    yield terminal
    terminal.close()


def test_turns_a_stopped_reply_another_turn_and_the_end(chat):
    assert re.search(r" · drafts a round: 2 · greedy\n/help shows what can be typed, Ctrl-D leaves\n>>>$", chat.text)

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


def restarted(pair, state) -> Terminal:
    terminal = Terminal([*MTP, "chat", *pair.options, "--num-draft-tokens", "2", "--max-tokens", "20"], state)
    terminal.expect(PROMPT)
    return terminal


def test_several_lines_by_quotes_by_alt_enter_and_pasted(chat):
    chat.type('"""one\r')
    chat.expect(r'"""one\n\.\.\.')
    chat.type('two"""\r')
    chat.expect(PROMPT)
    chat.type(f"one{ALT_ENTER}")
    chat.expect(r"one\n\.\.\.")
    chat.type("two\r")
    chat.expect(PROMPT)
    chat.paste("one\ntwo")
    chat.expect(r"one\n\.\.\. two")
    chat.type("\r")
    chat.expect(PROMPT)
    chat.type("/undo\r/undo\r/undo\r/undo\r")
    shown = chat.expect("there is no message yet")
    assert shown.count("taken back: one two") == 3


def test_commands_and_what_they_take_are_completed(chat):
    chat.type("/dra")
    chat.shows("how many tokens to draft a round")
    chat.type("\t au")
    chat.shows(r">>> /draft au\n +auto")
    chat.type("\t\r")
    chat.expect(r"drafts a round: auto\n>>>$")
    chat.type("/sa")
    chat.shows("/save +write the conversation")


def test_history_stays_from_one_chat_to_the_next_and_is_private(pair, chat, tmp_path):
    chat.type("/system be brief\r")
    chat.expect(PROMPT)
    chat.type(CTRL_D)
    assert chat.wait() == 0
    file = tmp_path / "mtp" / "chat_history"
    assert "/system be brief" in file.read_text() and file.stat().st_mode & 0o077 == 0
    again = restarted(pair, tmp_path)
    again.type("\x1b[A\r")
    again.expect(r" /system be brief\nsystem prompt: be brief\n>>>$")
    again.close()


def test_without_a_place_for_its_history_the_chat_works(pair, tmp_path):
    (tmp_path / "mtp").write_text("in the way")
    terminal = restarted(pair, tmp_path)
    terminal.type("hello\r")
    terminal.expect(PROMPT)
    terminal.close()


def test_drafts_are_shown_in_colours_with_a_legend_and_a_measured_speed_up(chat):
    chat.type("/show drafts\r")
    shown = chat.expect(PROMPT)
    assert "accepted drafts, by position in their round" in shown and " corrected " in shown
    assert re.search(r"plain speed: \d+\.\d tok/s, measured just now without drafts", shown)
    chat.type("hello\r")
    shown = chat.expect(PROMPT)
    assert re.search(r"tok/s · \d+\.\d\d× plain · \d\.\d\d tokens a round", shown)
    first_line = shown.split("\n")[1]
    assert len(chat.colours(first_line)) > 1


def test_ctrl_c_while_a_long_prompt_is_read_stops_there(pair, tmp_path):
    options = [*pair.options, "--prefill-step-size", "1"]
    terminal = Terminal([*MTP, "chat", *options, "--max-tokens", "5"], tmp_path)
    terminal.expect(PROMPT)
    terminal.paste("word " * 190)
    terminal.type("\r")
    time.sleep(0.3)
    terminal.type(CTRL_C)
    shown = terminal.expect(PROMPT)
    # The second where the machine was so slow that reading had not begun yet.
    assert re.search(r"stopped before the reply began; the message is not part of the conversation|\nstopped\n", shown)
    terminal.type("hello\r")
    new, kept = re.search(r"prompt (\d+) new \+ (\d+) kept · cut off", terminal.expect("cut off")).groups()
    assert int(new) + int(kept) < 60
    terminal.close()


def test_a_resized_screen_is_used(chat):
    chat.type("hello\r")
    chat.expect(PROMPT)
    chat.resize(60, 20)
    chat.type("/set max_tokens 100\r")
    chat.expect("max_tokens 100")
    chat.type("more\r")
    chat.expect("100 tokens · ")
    chat.type(CTRL_D)
    assert chat.wait() == 0


def test_what_is_typed_while_a_reply_comes_waits_and_does_not_disturb_it(chat):
    chat.type("hello\r")
    begun = chat.expect("[a-z]{5,} [a-z]+ ").split("\n")[1]
    chat.type("/undo\r")
    shown = chat.expect(r"taken back: hello\n>>>$")
    assert begun not in shown and shown.index("150 tokens") < shown.index("/undo")
    assert chat.text.count(begun) == 1
