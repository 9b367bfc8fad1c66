"""Thoughts and answer are told apart by ids, however the text of tokens falls together."""

import pytest

from mtp_mlx.load import load_tokenizer
from mtp_mlx.reply import ReplyParser
from tests import tiny_tokenizer

OPEN, CLOSE, END_OF_TURN = 100, 101, 106


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tiny_tokenizer.write_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    return load_tokenizer(folder, {END_OF_TURN})


def parse(tokenizer, *parts: int | str) -> tuple[str, str]:
    """(thought, answer) of a reply of control ids and text."""
    parser, pieces = ReplyParser(tokenizer), []
    for part in parts:
        ids = [part] if isinstance(part, int) else tokenizer.encode(part, add_special_tokens=False)
        for token in ids:
            pieces += parser.feed(token)
    pieces += parser.finish()
    assert all(piece.text for piece in pieces)
    thought, answer = ("".join(p.text for p in pieces if p.is_thought is kind) for kind in (True, False))
    return thought, answer


@pytest.mark.parametrize("text", ["Hello, the world!", " two  blanks\n\n\tx", "naïve 東京 🙂 e\u0301", "<|channel"])
def test_an_answer_alone_is_the_decoded_text(tokenizer, text):
    assert parse(tokenizer, text, END_OF_TURN) == ("", text)


def test_thoughts_are_apart_and_without_their_markers(tokenizer):
    parts = (OPEN, "thought\nWell, 🙂.\nSo", CLOSE, " Yes.\nthought\n", END_OF_TURN)
    assert parse(tokenizer, *parts) == ("Well, 🙂.\nSo", " Yes.\nthought\n")


def test_an_empty_thought_shows_nothing(tokenizer):
    assert parse(tokenizer, OPEN, "thought\n", CLOSE, "Yes") == ("", "Yes")
    assert parse(tokenizer, OPEN, CLOSE, "Yes") == ("", "Yes")


def test_thoughts_that_were_cut_off_are_still_thoughts(tokenizer):
    assert parse(tokenizer, "A", OPEN, "thought\nwhy") == ("why", "A")


def test_several_channels(tokenizer):
    assert parse(tokenizer, OPEN, "thought\na", CLOSE, "b", OPEN, "thought\nc", CLOSE, "d") == ("ac", "bd")


def test_a_close_without_an_open_is_text(tokenizer):
    assert parse(tokenizer, "a", CLOSE, "b") == ("", "a<channel|>b")


def test_a_character_split_by_the_end_is_shown_as_such(tokenizer):
    ids = tokenizer.encode("🙂", add_special_tokens=False)
    assert len(ids) > 1
    assert parse(tokenizer, "a", *ids[:2])[1].rstrip("\ufffd") == "a"
