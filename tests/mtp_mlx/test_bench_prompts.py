"""Prompts to measure on: the package's suites, files, and lengths."""

import json

import pytest

from mtp_mlx import MisuseError, UserError
from mtp_mlx.bench.prompts import LONG, SUITES, BenchPrompt, default_prompts, of_length, read_prompts, select, suites
from mtp_mlx.load import load_tokenizer
from mtp_weights.locate import DEMO_TARGET, bundled_folder
from tests import tiny, tiny_tokenizer


@pytest.fixture(scope="module")
def model():
    return tiny.build_target(tiny.target_config("31b"))


def test_prompts_from_lines_and_from_json_lines(tmp_path):
    text = tmp_path / "mine.txt"
    text.write_text("first\n\n  \nsecond\u2028still second\n", "utf-8")
    assert read_prompts(text) == [BenchPrompt("mine", "first"), BenchPrompt("mine", "second\u2028still second")]
    lines = tmp_path / "mine.jsonl"
    entries = [{"prompt": "a"}, {"prompt": "b", "category": "x"}, {"prompt": "c", "domain": "y", "kind": "raw"}]
    lines.write_text("\n".join(json.dumps(entry) for entry in entries))
    assert read_prompts(lines) == [BenchPrompt("prompts", "a"), BenchPrompt("x", "b"), BenchPrompt("y", "c", True)]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.txt", b"\n\n", "the file has no prompts"),
        ("a.txt", b"caf\xe9", "prompts must be UTF-8 text .given: .*byte 3"),
        ("a.jsonl", b'{"prompt": "x"}\n{', "each line must be a JSON object .given: .*line 2"),
        ("a.jsonl", b"[]", "each line must be a JSON object with a 'prompt' text .given: .*line 1"),
        ("a.jsonl", b'{"prompt": 3}', "with a 'prompt' text"),
        ("a.jsonl", b'{"prompt": "x", "kind": "y"}', "the 'kind' of a prompt must be 'chat' or 'raw'"),
    ],
)
def test_bad_prompt_files(tmp_path, name, content, problem):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=problem):
        read_prompts(tmp_path / name)


def test_a_prompt_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="cannot read the prompts"):
        read_prompts(tmp_path / "none.txt")


def test_select_takes_evenly_from_each_category():
    prompts = [BenchPrompt("ab"[n % 2], str(n)) for n in range(20)]
    assert [prompt.text for prompt in select(prompts, 3)] == ["0", "6", "12", "1", "7", "13"]
    assert len(select(prompts, 99)) == 20


def test_the_package_s_suites():
    for name in SUITES:
        prompts = suites([name])
        assert {prompt.category for prompt in prompts} == {name}
        assert len({prompt.text for prompt in prompts}) == len(prompts) >= 4
    assert len(suites(["chat", "code"])) == len(suites(["chat"])) + len(suites(["code"]))


def test_long_prompts_hold_all_the_others(model):
    others = suites([name for name in SUITES if name != LONG])
    first, second, *_ = suites([LONG])
    assert all(other.text in first.text and other.text in second.text for other in others)
    assert first.text[:200] != second.text[:200]
    assert default_prompts(model) == others


def test_an_unknown_suite():
    with pytest.raises(MisuseError, match="no such suite .given: poems.; there are chat, code, "):
        suites(["chat", "poems"])


def test_prompts_of_a_length(tmp_path):
    tokenizer = load_tokenizer(tiny_tokenizer.write_tokenizer(tmp_path), set())
    prompts = [BenchPrompt("a", "hello there"), BenchPrompt("a", "the end of it")]
    found = of_length(prompts, tokenizer, 200, 3)
    assert [len(ids) for ids in found] == [200] * 3 and len({tuple(ids) for ids in found}) == 3
    assert {ids[0] for ids in found} == {tokenizer.bos_token_id}
    assert all(ids.count(tokenizer.bos_token_id) == 1 for ids in found)


def test_the_demo_s_prompts_are_its_held_out_text(model, monkeypatch):
    monkeypatch.setattr(model, "path", bundled_folder(DEMO_TARGET))
    categories = {prompt.category for prompt in default_prompts(model)}
    assert categories == {"bible", "novels", "code", "chat"}


def test_raw_prompts_do_without_the_template(tmp_path):
    tokenizer = load_tokenizer(tiny_tokenizer.write_tokenizer(tmp_path), set())
    raw, templated = BenchPrompt("a", "hello", True).ids(tokenizer), BenchPrompt("a", "hello").ids(tokenizer)
    assert raw == tokenizer.encode("hello") and 105 in templated and 105 not in raw
