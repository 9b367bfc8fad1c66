"""Text to train on: what is read, what is refused and how it is named, and how it comes into rows."""

import json
import random

import pytest

from mtp_mlx.errors import UserError
from mtp_mlx.load import load_tokenizer
from mtp_mlx.training import Settings, pack, read_documents
from mtp_mlx.training.prepare import prepare
from mtp_mlx.training.rows import document_ids, hold_out
from tests import tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(tiny_tokenizer.write_tokenizer(tmp_path_factory.mktemp("tokenizer")), {1, 106})


def jsonl(file, *entries):
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return file


CHAT = [{"role": "user", "content": "red"}, {"role": "assistant", "content": "bell"}]


def test_every_format_is_read(tmp_path, tokenizer):
    file = jsonl(
        tmp_path / "data.jsonl",
        {"text": "the bell"},
        {"messages": CHAT},
        {"prompt": "red", "completion": "bell"},
    )
    text, chat, pair = read_documents(file).train
    assert document_ids(text, tokenizer) == [2, *tokenizer.encode("the bell", add_special_tokens=False), 1]
    assert document_ids(chat, tokenizer) == document_ids(pair, tokenizer)
    assert (
        tokenizer.decode(document_ids(chat, tokenizer)) == "<bos><|turn>user\nred<turn|>\n<|turn>model\nbell<turn|>\n"
    )


def test_a_folder_as_mlx_lm_has_it(tmp_path):
    jsonl(tmp_path / "train.jsonl", {"text": "a"}, {"text": "b"})
    jsonl(tmp_path / "valid.jsonl", {"text": "c"})
    (tmp_path / "notes.txt").write_text("not read")
    found = read_documents(tmp_path)
    assert [document.text for document in found.train] == ["a", "b"]
    assert [document.text for document in found.valid] == ["c"]


def test_a_folder_of_texts(tmp_path):
    for name, text in {"b.txt": "two", "a.md": "one", "valid.txt": "three", "c.png": "x"}.items():
        (tmp_path / name).write_text(text)
    found = read_documents(tmp_path)
    assert [document.text for document in found.train] == ["one", "two"]
    assert [document.text for document in found.valid] == ["three"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', r"not JSON \(given: .*a\.jsonl:2: "),
        ("a.jsonl", b"[1]\n", r"must be \{.*a\.jsonl:1: the line is no JSON object"),
        ("a.jsonl", b'\n\n{"txt": "x"}\n', r"a\.jsonl:3: its keys are 'txt'"),
        ("a.jsonl", b"{}", r"a\.jsonl:1: its keys are none"),
        ("a.jsonl", b'{"text": 5}', r"a\.jsonl:1: its keys"),
        ("a.jsonl", b'{"messages": []}', r"a\.jsonl:1: messages must be a list"),
        ("a.jsonl", b'{"messages": [{"content": "x"}]}', r"a\.jsonl:1: each message needs a role"),
        ("a.jsonl", b'{"messages": [{"role": "user", "content": [1]}]}', r"a\.jsonl:1: the content of the user"),
        ("a.jsonl", b'{"prompt": "x", "completion": 1}', r"a\.jsonl:1: the content of the assistant"),
        ("a.jsonl", b'{"text": "ok"}\n{"text": "\xff"}', r"must be UTF-8 \(given: .*a\.jsonl:2, byte 11"),
        ("a.txt", b"\xff", r"must be UTF-8 \(given: .*a\.txt, byte 1"),
        ("a.txt", b" \n", "there is no text in the training data"),
        ("a.jsonl", b"\n", "there is no text in the training data"),
        ("a.csv", b"x", "unknown kind of file with training text"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_documents(tmp_path / name)


def test_no_file_and_an_empty_folder(tmp_path):
    with pytest.raises(UserError, match="no such file or folder"):
        read_documents(tmp_path / "none")
    with pytest.raises(UserError, match="no training text in the folder"):
        read_documents(tmp_path)


def test_a_conversation_that_the_template_refuses_is_named(tmp_path, tokenizer):
    [document] = read_documents(jsonl(tmp_path / "a.jsonl", {"messages": CHAT})).train
    refusing = load_tokenizer(tiny_tokenizer.write_tokenizer(tmp_path), {1})
    refusing._tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(UserError, match=r"refuses the conversation \(given: .*a\.jsonl:1: roles must alternate"):
        document_ids(document, refusing)


def test_rows_hold_every_token_and_say_whose_it_is():
    rng = random.Random(0)
    documents = [[2, *(rng.randrange(3, 99) for _ in range(rng.randrange(1, 40)))] for _ in range(60)]
    rows = pack(documents, 16, bos=2)
    assert rows.tokens.shape == rows.segments.shape == (len(rows), 16)
    found = [
        tuple(tokens[segments == number].tolist())
        for tokens, segments in zip(rows.tokens, rows.segments, strict=True)
        for number in range(1, segments.max() + 1)
    ]
    expected = []
    for ids in documents:
        expected.append(tuple(ids[:16]))
        expected += [(2, *ids[start : start + 15]) for start in range(16, len(ids), 15)]
    assert sorted(found) == sorted(part for part in expected if len(part) > 1)
    assert (rows.segments > 0).mean() > 0.9


def test_a_part_is_held_out_and_nothing_is_in_both():
    rows = pack([[i, i, i] for i in range(40)], 3, bos=None)
    train, valid = hold_out(rows, most=100, seed=1)
    assert (len(train), len(valid)) == (38, 2)
    assert not set(train.tokens[:, 0].tolist()) & set(valid.tokens[:, 0].tolist())
    assert len(hold_out(rows, most=1, seed=1)[1]) == 1
    with pytest.raises(UserError, match="too little to hold a part out"):
        hold_out(rows.take(slice(1)), most=1, seed=1)


def test_only_rows_that_will_come_up_are_kept(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("the red bell " * 200)
    settings = Settings(iters=3, batch_size=2, max_seq_length=16, num_draft_tokens=2)
    text = prepare(read_documents(tmp_path), None, tokenizer, settings, 1, tmp_path)
    assert (len(text.train), len(text.valid), text.held_out) == (6, 2, True)


def test_text_that_is_too_short_and_prompts_without_replies(tmp_path, tokenizer):
    settings = Settings(num_draft_tokens=4)
    short = read_documents(jsonl(tmp_path / "a.jsonl", {"text": "a"}))
    with pytest.raises(UserError, match="no text in the training data is long enough .* at least 6 tokens"):
        prepare(short, None, tokenizer, settings, 1, tmp_path)
    prompts = read_documents(jsonl(tmp_path / "b.jsonl", {"messages": CHAT}, {"prompt": "red"}))
    with pytest.raises(UserError, match=r"a prompt without a reply \(given: .*b\.jsonl:2\).*--self-distill generate"):
        prepare(prompts, None, tokenizer, settings, 1, tmp_path)
