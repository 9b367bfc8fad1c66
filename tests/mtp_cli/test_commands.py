"""The commands of the chat, with piped input."""

import json
import re

import pytest

from mtp_cli import commands
from mtp_weights.errors import UserError
from tests.mtp_cli.conftest import mtp

LIMIT = ("--max-tokens", "12")


@pytest.fixture
def chat(pair):
    def run(*lines: str, options=LIMIT):
        return mtp("chat", *pair.options, *options, given="".join(f"{line}\n" for line in lines))

    return run


def notes(result) -> list[str]:
    """What is on stderr besides the line on each turn."""
    return [line for line in result.stderr.splitlines() if " new + " not in line]


def prompts(result) -> list[tuple[int, int]]:
    return [(int(new), int(kept)) for new, kept in re.findall(r"prompt (\d+) new \+ (\d+) kept", result.stderr)]


def test_help_comes_from_the_table_and_fits_80_columns(chat):
    lines = notes(chat("/help"))
    assert [line.split()[0] for line in lines[: len(commands.COMMANDS)]] == [c.name for c in commands.COMMANDS]
    assert max(map(len, lines)) <= 80
    assert notes(chat("h")) == lines


def test_each_command_of_the_issue_is_there_and_mlx_lm_s_letters():
    wanted = "/help /exit /clear /system /set /stats /regen /undo /save /load /think /draft /show"
    assert wanted == " ".join(command.name for command in commands.COMMANDS)
    assert [commands.find(letter)[0].name for letter in "qrh"] == ["/exit", "/clear", "/help"]


@pytest.mark.parametrize("line", ["q x", "hello", " /help", "/etc/passwd is a file", "", "r?", '"""'])
def test_messages_are_no_commands(line):
    assert commands.find(line) is None


@pytest.mark.parametrize("line", ["/nonsense", "/st temp 1", "/", "/HELP"])
def test_an_unknown_command_is_refused(line):
    with pytest.raises(UserError, match="no such command"):
        commands.find(line)


def test_undo_takes_back_a_turn_and_regen_replies_again(chat):
    result = chat("one", "two", "/undo", "two", "/regen")
    first, second, again, regenerated = result.stdout.splitlines()
    assert second == again == regenerated
    assert "taken back: two" in notes(result)
    assert "at temperature 0 the reply stays the same; /set temp 0.7 varies it" in notes(result)


def test_undo_and_regen_without_a_message(chat):
    result = chat("/undo", "/regen")
    assert notes(result)[0] == "error: there is no message yet" and result.exit_code == 1


def test_settings_change_the_next_reply(chat):
    result = chat("one", "/set max_tokens 5", "/regen", "/set temp 1.5", "/set seed 3", "/regen", "/regen", "/set")
    greedy, short, drawn, again = result.stdout.splitlines()
    assert greedy.startswith(short) and drawn == again != short
    assert notes(result)[-1].startswith("temp 1.5 · ") and notes(result)[-1].endswith(" · max_tokens 5")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("/set temp", "/set takes a name and a value (given: temp); names are temp, top_p, "),
        ("/set colour red", "/set takes a name and a value (given: colour red); names are temp, "),
        ("/set temp hot", "temp must be a number (given: hot)"),
        ("/set temp -1", "the temperature must not be negative (given: -1.0)"),
        ("/set top_k 1.5", "top_k must be a whole number (given: 1.5)"),
        ("/set max_tokens 0", "--max-tokens must be positive, or -1 for no limit (given: 0)"),
        ("/draft x", "/draft must be a number or 'auto' (given: x)"),
        ("/draft 99", "the number of draft tokens must be 'auto' or between 0 and 16 (given: 99)"),
        ("/think maybe", "/think takes 'on' or 'off' (given: maybe)"),
        ("/show everything", "nothing that can be shown (given: everything); it is one of drafts, markdown, thoughts"),
        ("/stats all", "/stats takes nothing, or 'plain' (given: all)"),
        ("/save", "/save takes the name of a file; /save chat.json"),
        ("/load", "/load takes the name of a file; /load chat.json"),
        ("/load /no/such/file", "cannot read (given: /no/such/file: No such file or directory); check the path"),
    ],
)
def test_misuse_is_one_line_and_changes_nothing(chat, line, error):
    result = chat("one", line, "/regen")
    shown = [note for note in notes(result) if note.startswith("error: ")]
    assert len(shown) == 1 and shown[0].startswith(f"error: {error}")
    first, again = result.stdout.splitlines()
    assert first == again and result.exit_code == 1


def test_system_changes_what_the_model_is_told(chat):
    result = chat("one", "/system be brief", "/regen", "/system", "/system off", "/regen")
    plain, brief, plain_again = result.stdout.splitlines()
    assert plain == plain_again != brief
    assert notes(result).count("system prompt: be brief") == 2 and "system prompt: none" in notes(result)


def test_drafts_can_be_changed_and_do_not_change_the_reply(chat):
    result = chat("one", "/draft off", "/regen", "/draft 5", "/regen", "/draft auto", "/draft")
    assert len(set(result.stdout.splitlines())) == 1
    assert [note for note in notes(result) if "drafts a round" in note] == [
        "drafts a round: none",
        "drafts a round: 5",
        "drafts a round: auto",
        "drafts a round: auto",
    ]


def test_without_a_drafter_there_is_nothing_to_set(pair):
    result = mtp("chat", "--model", pair.target, "--no-draft", given="/draft 3\n/stats\n")
    assert "error: no drafter is loaded; begin the chat without --no-draft" in result.stderr


def test_a_turn_without_drafts_measures_plain_speed(chat):
    before, after = chat("one", "/stats"), chat("one", "/draft off", "/regen", "/draft 2", "/regen", "/stats")
    assert any(line.startswith("plain         not measured (/stats plain does it)") for line in notes(before))
    assert "× plain" not in before.stderr
    assert re.search(r"^plain         \d+\.\d tok/s$", after.stderr, re.M)
    assert re.search(r"^with drafts   \d+\.\d tok/s, \d+\.\d\d× plain$", after.stderr, re.M)
    assert len(re.findall(r"tok/s · \d+\.\d\d× plain · ", after.stderr)) == 1  # of the turn with drafts that came after


def test_plain_speed_can_be_measured_at_once(chat):
    result = chat("/stats plain")
    assert re.search(r"^plain         \d+\.\d tok/s$", result.stderr, re.M)
    assert re.search(r"^turns         0, 0 tokens$", result.stderr, re.M)


def test_thinking_goes_through_the_template(chat):
    off, on = chat("one"), chat("/think on", "one", "/think")
    assert prompts(on)[0][0] > prompts(off)[0][0]
    assert notes(on) == ["thinking: on", "thinking: on"]
    assert prompts(chat("one", options=(*LIMIT, "--think"))) == prompts(on)


def test_show_in_a_pipe_says_what_it_would_do(chat):
    result = chat("/show", "/show drafts")
    assert notes(result) == [
        "drafts off · markdown on · thoughts off",
        "drafts on · markdown on · thoughts off",
        "colours need a terminal",
    ]


@pytest.mark.parametrize("cache", [False, True])
def test_a_saved_conversation_goes_on_as_if_it_had_never_stopped(chat, tmp_path, cache):
    file = tmp_path / "chat.json"
    save = f"/save {file}" + (" --cache" if cache else "")
    first = chat("one", "two", save, "three", options=(*LIMIT, "--system-prompt", "be brief"))
    second = chat(f"/load {file}", "three")
    assert second.stdout.splitlines() == first.stdout.splitlines()[2:]
    new, kept = prompts(second)[0]
    assert (kept > 0) is cache
    if cache:
        assert (new, kept) == prompts(first)[-1]
    saved = json.loads(file.read_text())
    assert [message["role"] for message in saved["messages"]] == ["system"] + ["user", "assistant"] * 2
    assert f"4 messages in {file}" in first.stderr and f"4 messages from {file}" in second.stderr


def test_messages_of_other_programs_can_be_loaded(chat, tmp_path):
    file = tmp_path / "chat.json"
    parts = [{"type": "text", "text": "one"}]
    file.write_text(json.dumps([{"role": "user", "content": parts}]))
    result = chat(f"/load {file}", "/regen", "/undo")
    assert result.stdout == chat("one").stdout
    assert "taken back: one" in notes(result)


def test_a_cache_of_another_model_is_left_out_and_said_so(chat, tmp_path):
    file = tmp_path / "chat.json"
    chat("one", f"/save {file} --cache")
    (tmp_path / "chat.safetensors").write_bytes(b"damaged")
    result = chat(f"/load {file}", "two")
    assert any(note.startswith("not used: cannot read the prompt cache") for note in notes(result))
    assert prompts(result)[0][1] == 0


@pytest.mark.parametrize(
    "content",
    [
        "nothing",
        "{}",
        '{"messages": 1}',
        '[{"role": "user"}]',
        '[{"role": "tool", "content": "x"}]',
        '[{"role": "user", "content": [{"type": "image_url"}]}]',
        '[{"role": "user", "content": null}]',
        '[{"role": "user", "content": [{"type": "text"}]}]',
        "[1]",
    ],
)
def test_what_is_no_conversation_is_not_loaded_nor_written_over(chat, tmp_path, content):
    file = tmp_path / "file"
    file.write_text(content)
    result = chat("one", f"/load {file}", f"/save {file}", "/regen")
    errors = [note for note in notes(result) if note.startswith("error: ")]
    assert len(errors) == 2
    assert all("not a conversation" in e or "images and audio are not supported" in e for e in errors)
    assert file.read_text() == content
    first, again = result.stdout.splitlines()
    assert first == again


def test_a_file_that_cannot_be_written(chat, tmp_path):
    result = chat("one", f"/save {tmp_path}/no/chat.json", "/regen")
    assert "error: cannot write (given: " in result.stderr and len(result.stdout.splitlines()) == 2


def test_images_that_are_dropped_in_are_refused(chat, tmp_path):
    picture = tmp_path / "my cat.png"
    picture.write_bytes(b"\x89PNG")
    quoted = str(picture).replace(" ", r"\ ")
    result = chat(f"what is this? {quoted}", f"'{picture}'", f" '{picture}'", "what is /no/such.png", "it's a .wav")
    assert len(result.stdout.splitlines()) == 3
    error = "error: messages must be text: images, audio and video are not supported"
    assert [note for note in notes(result) if note.startswith(error)] == [
        f"{error} (given: {picture}); begin the line with a blank to send it as text"
    ] * 2
