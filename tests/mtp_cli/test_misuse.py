"""Whatever goes wrong: one line that says what is wrong and how to mend it, and the exit code for it."""

import json
from pathlib import Path

import pytest

from tests.mtp_cli.conftest import CONTEXT, broken, error_line, mtp, without_template, write_drafter

GENERATE = ("generate", "--prompt", "hello")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["foo"], "No such command 'foo'."),
        (["generate", "--foo"], "No such option: --foo"),
        (["generate"], "one prompt is needed; give --prompt TEXT, --prompt - for stdin, or --prompt-file FILE"),
        ([*GENERATE, "--prompt-file", "x"], "one prompt is needed; give --prompt TEXT, "),
        (["generate", "--prompt", " \n"], "the prompt is empty; give it some text"),
        ([*GENERATE, "--max-tokens", "0"], "--max-tokens must be positive, or -1 for no limit (given: 0)"),
        ([*GENERATE, "--max-tokens", "-2"], "--max-tokens must be positive, or -1 for no limit (given: -2)"),
        ([*GENERATE, "--max-tokens", "many"], "Invalid value for '--max-tokens'"),
        ([*GENERATE, "--num-draft-tokens", "x"], "--num-draft-tokens must be a number or 'auto' (given: x)"),
        ([*GENERATE, "--num-draft-tokens", "-1"], "--num-draft-tokens must be a number or 'auto' (given: -1)"),
        ([*GENERATE, "--num-draft-tokens", "99"], "the number of draft tokens must be 'auto' or between 0 and 16"),
        ([*GENERATE, "--num-draft-tokens", "9" * 5000], "--num-draft-tokens must be a number or 'auto' (given: 999"),
        ([*GENERATE, "--prefill-step-size", "0"], "--prefill-step-size must be positive (given: 0)"),
        ([*GENERATE, "--temp", "-1"], "the temperature must not be negative (given: -1.0)"),
        ([*GENERATE, "--temp", "inf"], "the temperature must be finite (given: inf)"),
        ([*GENERATE, "--top-p", "1.5"], "top_p must be between 0 and 1 (given: 1.5)"),
        ([*GENERATE, "--top-k", "-3"], "top_k must not be negative (given: -3)"),
        ([*GENERATE, "--min-p", "2"], "min_p must be between 0 and 1 (given: 2.0)"),
        ([*GENERATE, "--seed", "-1"], "the seed must not be negative (given: -1)"),
        ([*GENERATE, "--seed", "9" * 30], "the seed must be at most 18446744073709551615 (given: 999"),
        ([*GENERATE, "--raw", "--system-prompt", "x"], "--system-prompt needs the chat template; leave out --raw, "),
        ([*GENERATE, "--raw", "--prefill-response", "x"], "--prefill-response needs the chat template; leave out "),
        ([*GENERATE, "--chat-template-config", "{"], "--chat-template-config must be JSON (given: Expecting "),
        ([*GENERATE, "--chat-template-config", "[]"], "--chat-template-config must be a JSON object (given: [])"),
        ([*GENERATE, "--no-draft", "--draft-model", "x"], "--draft-model and --no-draft exclude each other; "),
        (["chat", "--max-tokens", "0"], "--max-tokens must be positive, or -1 for no limit (given: 0)"),
        (["bench", "--limit", "0"], "--limit must be positive (given: 0)"),
        (["bench", "--repeats", "0"], "--repeats must be positive (given: 0)"),
        (
            ["bench", "--num-tokens", "0"],
            "--num-tokens must be a positive number, or several with commas between them (given: 0)",
        ),
    ],
)
def test_options_that_can_never_work_are_refused_before_anything_is_loaded(arguments, line):
    assert error_line(mtp(*arguments), 2).startswith(line)


def test_nan_is_not_a_temperature():
    assert error_line(mtp(*GENERATE, "--temp", "nan"), 2) == "the temperature must not be negative (given: nan)"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("/no/such/folder", "no such folder (given: /no/such/folder); check the path"),
        (
            "nonsense",
            "neither a local folder nor a repository id (given: 'nonsense'); a repository is named owner/name",
        ),
    ],
)
def test_a_model_that_is_not_there(name, line):
    assert error_line(mtp(*GENERATE, "--model", name), 1).startswith(line)


def test_a_prompt_file_that_is_not_there(tmp_path):
    missing = tmp_path / "prompt.txt"
    expected = f"cannot read the prompt file (given: {missing}: No such file or directory); check the path"
    assert error_line(mtp("generate", "--prompt-file", str(missing)), 1) == expected


def test_a_prompt_that_is_not_utf8(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"caf\xe9")
    expected = f"the prompt must be UTF-8 text (given: {file}, byte 3)"
    assert error_line(mtp("generate", "--prompt-file", str(file)), 1) == expected
    assert error_line(mtp("generate", "-p", "-", given=b"\xff"), 1).endswith("(given: stdin, byte 0)")


@pytest.mark.parametrize("option", ["--prompt", "--system-prompt", "--stop"])
def test_options_that_are_not_utf8(option):
    assert error_line(mtp("generate", option, "a\udcff"), 2) == r"options must be UTF-8 text (given: 'a\udcff')"


def test_a_prompt_longer_than_the_context(pair):
    line = error_line(mtp("generate", "-p", "x" * 3000, *pair.options), 2)
    assert line.startswith(f"the prompt must be shorter than the model's context of {CONTEXT} tokens (given: 30")


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"config__json": None}, "a checkpoint folder needs a config.json"),
        ({"config__json": "{"}, "config.json is not valid JSON"),
        ({"config__json": '{"model_type": "qwen2"}'}, "not a target that mtp can run (given: model_type 'qwen2')"),
        ({"config__json": '{"model_type": "gemma4_text"}'}, "config.json lacks"),
        ({"tokenizer__json": None}, "no tokenizer.json in the model folder"),
        ({"tokenizer__json": "{"}, "cannot read the tokenizer"),
        ({"tokenizer__json": '{"added_tokens": [], "model": {"type": "?"}}'}, "cannot read the tokenizer"),
        ({"tokenizer_config__json": "{"}, "cannot read the tokenizer"),
        ({"model__safetensors": None}, "model.safetensors"),
        ({"model__safetensors": "nothing"}, "model.safetensors"),
    ],
)
def test_damaged_checkpoints(pair, tmp_path, files, line):
    folder = broken(pair.target, tmp_path / "target", **files)
    assert line in error_line(mtp(*GENERATE, "--model", folder, "--no-draft"), 1)


def test_truncated_weights(pair, tmp_path):
    folder = broken(pair.target, tmp_path / "target")
    weights = Path(folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "model.safetensors" in error_line(mtp(*GENERATE, "--model", folder, "--no-draft"), 1)


def test_a_drafter_that_does_not_load_is_never_skipped(pair, tmp_path):
    line = error_line(mtp(*GENERATE, "--model", pair.target), 1)
    assert line.startswith("no drafter: no drafter is known for a gemma4_text target of hidden size 64 ")
    assert line.endswith("(--no-draft decodes without one)")
    line = error_line(mtp(*GENERATE, "--model", pair.target, "--draft-model", pair.target), 1)
    assert line.startswith("no drafter: not a drafter that mtp can run (given: model_type 'gemma4_text')")
    other = write_drafter(tmp_path / "other", hidden_size=32)
    line = error_line(mtp(*GENERATE, "--model", pair.target, "--draft-model", str(other)), 1)
    assert line.startswith("no drafter: wrong pair: the target has hidden size 64, the drafter was trained for 32")


def test_a_drafter_that_does_not_load_stops_chat_and_bench_too(pair):
    for command in ("chat", "bench"):
        assert error_line(mtp(command, "--model", pair.target), 1).startswith("no drafter: ")


def test_a_model_without_a_chat_template(pair, tmp_path):
    folder = without_template(pair.target, tmp_path / "target")
    assert error_line(mtp("chat", "--model", folder, "--no-draft"), 1).startswith("a chat needs a model with a chat")
    line = error_line(mtp(*GENERATE, "--model", folder, "--no-draft", "--system-prompt", "x"), 1)
    assert line.startswith("the model has no chat template for a system prompt")


def test_a_template_that_refuses_the_conversation(pair, tmp_path):
    config = json.loads((Path(pair.target) / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ raise_exception('no system role, please') }}"
    folder = broken(pair.target, tmp_path / "target", tokenizer_config__json=json.dumps(config))
    line = error_line(mtp(*GENERATE, "--model", folder, "--no-draft", "--system-prompt", "x"), 1)
    assert line == "the chat template refuses the conversation (given: no system role, please)"
