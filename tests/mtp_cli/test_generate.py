"""Whole transcripts of `mtp generate`."""

import json
import re
from pathlib import Path

import mtp_weights
from mtp_weights.openblas import Blas
from tests import tiny_tokenizer
from tests.mtp_cli.conftest import CONTEXT, broken, error_line, mtp, without_template

STATISTICS = """\
==========
Prompt: N tokens, N tokens-per-sec
Generation: N tokens, N tokens-per-sec
Peak memory: N GB
Speculation: N rounds, N% of N drafts accepted (N% · N% by position), N tokens a round
"""


def without_numbers(text: str) -> str:
    return re.sub(r"\d+(\.\d+)?", "N", text)


def test_text_on_stdout_and_statistics_on_stderr(pair):
    result = mtp("generate", "-p", "hello", "-m", "40", "--num-draft-tokens", "2", *pair.options)
    assert result.exit_code == 0
    assert re.fullmatch(r"[a-z ]{20,}\n", result.stdout)
    assert without_numbers(result.stderr) == STATISTICS
    assert "Generation: 40 tokens" in result.stderr


def test_drafting_does_not_change_the_text(pair):
    common = ("generate", "-p", "tell me", "-m", "50")
    plain = mtp(*common, "--model", pair.target, "--no-draft")
    assert without_numbers(plain.stderr) == "".join(STATISTICS.splitlines(keepends=True)[:-1])
    for drafts in ("0", "1", "5", "auto"):
        assert mtp(*common, *pair.options, "--num-draft-tokens", drafts).stdout == plain.stdout


def test_the_prompt_from_stdin_or_from_a_file(pair, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("tell me")
    common = ("generate", "-m", "20", *pair.options)
    expected = mtp(*common, "--prompt", "tell me").stdout
    assert expected
    assert mtp(*common, "--prompt", "-", given="tell me").stdout == expected
    assert mtp(*common, "--prompt-file", str(file)).stdout == expected


def test_json_has_everything_and_is_alone(pair):
    result = mtp("generate", "-p", "hello", "-m", "30", "--num-draft-tokens", "3", "--json", *pair.options)
    assert result.stderr == ""
    report = json.loads(result.stdout)
    text = mtp("generate", "-p", "hello", "-m", "30", *pair.options).stdout
    assert report["text"] + "\n" == text
    assert len(report["tokens"]) == report["generation_tokens"] == 30
    assert report["finish_reason"] == "length"
    assert report["timings"]["prompt_tps"] > 0 and report["timings"]["generation_tps"] > 0
    speculation = report["speculation"]
    assert speculation["drafted"] >= speculation["rounds"] > 0
    assert len(speculation["acceptance_by_position"]) == 3
    assert 1 + speculation["accepted"] + (speculation["rounds"] - 1) + 1 == 30


def test_json_without_a_drafter(pair):
    report = json.loads(mtp("generate", "-p", "x", "-m", "3", "--json", "--model", pair.target, "--no-draft").stdout)
    assert report["draft_model"] is None and report["speculation"] is None


def test_stop_strings_end_the_text(pair):
    common = ("generate", "-p", "hello", *pair.options)
    text = mtp(*common, "-m", "60").stdout
    stop = text[20:24]
    result = mtp(*common, "-m", "60", "--stop", "NEVER", "--stop", stop, "--json")
    report = json.loads(result.stdout)
    assert report["text"] == text[: text.index(stop)]
    assert report["finish_reason"] == "stop"


def test_the_system_prompt_and_the_template_count(pair):
    common = ("generate", "-p", "hello", "-m", "30", *pair.options)
    texts = {mtp(*common).stdout, mtp(*common, "--system-prompt", "be brief").stdout, mtp(*common, "--raw").stdout}
    assert len(texts) == 3
    assert mtp(*common, "--ignore-chat-template").stdout == mtp(*common, "--raw").stdout


def test_a_prompt_can_hold_a_bos_of_its_own(pair):
    common = ("generate", "-m", "2", "--raw", "--json", *pair.options)
    counts = [json.loads(mtp(*common, "-p", text).stdout)["prompt_tokens"] for text in ("hello", "<bos>hello")]
    assert counts[0] == counts[1]


def test_no_limit_goes_to_the_end_of_the_context(pair):
    prompt = "x" * (CONTEXT - 40)
    report = json.loads(mtp("generate", "-p", prompt, "--raw", "-m", "-1", "--json", *pair.options).stdout)
    assert report["prompt_tokens"] + report["generation_tokens"] == CONTEXT
    assert report["finish_reason"] == "length"


def test_the_same_seed_draws_the_same_text(pair):
    common = ("generate", "-p", "hello", "-m", "12", "--temp", "1.5", "--top-k", "20", "--top-p", "0.95", *pair.options)
    first, again, other = (mtp(*common, "--seed", seed).stdout for seed in ("1", "1", "2"))
    assert first == again != other


def test_a_seed_holds_however_much_is_drafted(pair):
    common = ("generate", "-p", "hello", "-m", "12", "--temp", "1", "--seed", "7", *pair.options)
    texts = {mtp(*common, "--num-draft-tokens", depth).stdout for depth in ("0", "2", "5", "auto")}
    assert len(texts) == 1


def test_the_models_own_sampling_is_the_default_and_is_named(pair, tmp_path):
    config = {"do_sample": True, "temperature": 1.0, "top_k": 64, "top_p": 0.95}
    target = broken(pair.target, tmp_path / "target")
    (Path(target) / "generation_config.json").write_text(json.dumps(config))
    common = ("generate", "-p", "hello", "-m", "8", "--model", target, "--draft-model", pair.drafter)
    assert mtp(*common).stderr.splitlines()[-1] == "Sampling: temperature 1, top-k 64, top-p 0.95"
    assert mtp(*common, "--temp", "0.5").stderr.splitlines()[-1] == "Sampling: temperature 0.5, top-k 64, top-p 0.95"
    assert "Sampling" not in mtp(*common, "--temp", "0").stderr
    sampling = json.loads(mtp(*common, "--json").stdout)["sampling"]
    assert (sampling["temp"], sampling["top_k"], sampling["top_p"]) == (1.0, 64, 0.95)


def test_a_generation_config_that_cannot_be_used_is_one_line(pair, tmp_path):
    target = broken(pair.target, tmp_path / "target")
    (Path(target) / "generation_config.json").write_text('{"do_sample": true, "temperature": "hot"}')
    line = error_line(mtp("generate", "-p", "hello", "--model", target, "--draft-model", pair.drafter), 1)
    assert line.startswith("generation_config.json: temp must be a number (given: 'hot')")


def test_a_lenient_reply_is_labelled(pair):
    result = mtp("generate", "-p", "hello", "-m", "12", "--lenient", *pair.options)
    assert result.stderr.splitlines()[-1] == "Sampling: greedy, lenient: output may differ from the target's"


def test_penalties_change_the_text_and_speculation_does_not(pair):
    common = ("generate", "-p", "hello", "-m", "24", *pair.options)
    penalties = ("--repetition-penalty", "1.5", "--presence-penalty", "1", "--frequency-penalty", "0.5")
    plain = mtp(*common, *penalties, "--num-draft-tokens", "0").stdout
    assert mtp(*common, *penalties, "--num-draft-tokens", "4").stdout == plain != mtp(*common).stdout


def test_xtc_leaves_out_no_line_break_and_no_token_that_ends_the_text(pair):
    common = ("-p", "hello", "-m", "4", "--temp", "1", "--extra-eos-token", "x", *pair.options)
    vocabulary = tiny_tokenizer._vocabulary()
    sampling = report(*common, "--xtc-probability", "0.5")["sampling"]
    assert {vocabulary[token] for token in ("\n", "<turn|>", "x")} <= set(sampling["xtc_special_tokens"])
    assert report(*common)["sampling"]["xtc_special_tokens"] == []


def test_min_p_keeps_as_many_tokens_as_it_is_told(pair):
    common = ("-p", "hello", "-m", "12", "--temp", "3", "--min-p", "1", *pair.options)
    greedy = report("-p", "hello", "-m", "12", *pair.options)["tokens"]
    assert report(*common)["tokens"] == greedy
    assert report(*common, "--min-tokens-to-keep", "9", "--seed", "1")["tokens"] != greedy
    line = error_line(mtp("generate", *common, "--min-tokens-to-keep", "0"), 2)
    assert line == "min_tokens_to_keep must be positive (given: 0)"


def test_prefill_in_small_steps_changes_nothing(pair):
    common = ("generate", "-p", "a rather long prompt, longer than the window", "-m", "20", *pair.options)
    assert mtp(*common, "--prefill-step-size", "5").stdout == mtp(*common).stdout


def test_a_model_without_a_chat_template_continues_the_prompt_and_says_so(pair, tmp_path):
    folder = without_template(pair.target, tmp_path / "target")
    result = mtp("generate", "-p", "hello", "-m", "5", "--model", folder, "--no-draft")
    assert result.exit_code == 0
    assert result.stderr.splitlines()[0] == "the model has no chat template: it continues the prompt as it is"


def report(*arguments: str) -> dict:
    return json.loads(mtp("generate", "--json", *arguments).stdout)


def test_a_prompt_cache_file_is_read_by_the_next_run(pair, tmp_path):
    file, document = tmp_path / "document.cache", "a long document " * 6
    common = ("--raw", "-m", "30", "--prefill-step-size", "20", *pair.options)
    cached = (*common, "--prompt-cache-file", str(file))
    first = report("-p", document, *cached)
    assert first["cached_tokens"] == 0 and file.exists()

    go_on = document + first["text"] + " and then"
    second = report("-p", go_on, *cached)
    assert second["cached_tokens"] >= len(document) // 2
    assert second["tokens"] == report("-p", go_on, *common)["tokens"]

    question = document + "what?"
    third = report("-p", question, *cached)
    assert third["prompt_tokens"] - third["cached_tokens"] <= 20 + len("what?")
    assert third["tokens"] == report("-p", question, *common)["tokens"]
    assert re.search(
        r"Prompt: \d+ tokens, \S+ tokens-per-sec, \d+ more from the cache",
        mtp("generate", "-p", question, *cached).stderr,
    )


def test_another_model_s_prompt_cache_is_refused_and_kept(pair, tmp_path):
    file = tmp_path / "a.cache"
    file.write_bytes(b"something of the user's")
    result = mtp("generate", "-p", "x", "--prompt-cache-file", str(file), *pair.options)
    assert error_line(result, 1).startswith(f"cannot read the prompt cache (given: {file}: ")
    assert file.read_bytes() == b"something of the user's"


def test_the_reply_goes_on_from_a_given_beginning(pair):
    common = ("-p", "hello", "-m", "20", *pair.options)
    whole = report(*common)
    begun = report(*common, "--prefill-response", "xyz")
    assert begun["prompt_tokens"] == whole["prompt_tokens"] + len("xyz") and begun["text"] != whole["text"]


def test_variables_for_the_template(pair):
    thinking = report("-p", "x", "-m", "2", "--chat-template-config", '{"enable_thinking": true}', *pair.options)
    assert thinking["prompt_tokens"] > report("-p", "x", "-m", "2", *pair.options)["prompt_tokens"]


def test_a_token_of_one_s_own_ends_the_reply(pair):
    common = ("-p", "hello", "-m", "60", *pair.options)
    text = report(*common)["text"]
    letter = next(c for c in text[5:] if c.isalpha() and c not in text[:5])
    ended = report(*common, "--extra-eos-token", letter)
    assert ended["finish_reason"] == "stop" and text.startswith(ended["text"]) and letter not in ended["text"]
    line = error_line(mtp("generate", *common, "--extra-eos-token", "nonsense"), 1)
    assert line == "--extra-eos-token must be a token of the model (given: nonsense)"


def test_a_slow_blas_is_told_in_one_line(pair, monkeypatch):
    blas = Blas("reference", "libgfortran.so.5: cannot open shared object file", "apt install libgfortran5")
    monkeypatch.setattr(mtp_weights, "BLAS", blas)
    result = mtp("generate", *pair.options, "--prompt", "the", "--max-tokens", "2")
    assert result.exit_code == 0
    (line,) = [line for line in result.stderr.splitlines() if "OpenBLAS" in line]
    assert line == f"slow: no OpenBLAS, because {blas.problem}; mend it with: {blas.fix}"


def test_quiet_is_the_text_alone(pair):
    result = mtp("generate", "-p", "hello", "-m", "9", "--quiet", *pair.options)
    assert result.stderr == "" and len(result.stdout.splitlines()) == 1


def test_quiet_leaves_notes_out_too(pair, monkeypatch):
    monkeypatch.setattr(mtp_weights, "BLAS", Blas("reference", "a reason", "a cure"))
    common = ("generate", *pair.options, "--prompt", "the", "--max-tokens", "2")
    assert mtp(*common, "--quiet").stderr == ""
    assert "slow: no OpenBLAS" in mtp(*common).stderr  # and only then
