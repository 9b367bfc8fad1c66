"""Conversations become token ids as transformers renders them, with one BOS, and nothing in them is dropped."""

import pytest
from transformers import AutoTokenizer

from mtp_mlx import MisuseError, UserError
from mtp_mlx.chat_template import render, shared_prefix
from mtp_mlx.load import load_tokenizer
from tests import tiny_tokenizer

MESSAGES = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
]
BOS, THINK = 2, 98


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_tokenizer.write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("thinking", [False, True])
def test_as_transformers_renders_it(folder, thinking):
    ids = render(load_tokenizer(folder, set()), MESSAGES, thinking=thinking)
    reference = AutoTokenizer.from_pretrained(folder)
    expected = reference.apply_chat_template(
        MESSAGES, add_generation_prompt=True, return_dict=False, enable_thinking=thinking
    )
    assert ids == expected
    assert ids.count(BOS) == 1 and ids[0] == BOS
    assert (THINK in ids) is thinking


def test_images_and_audio_are_refused(folder):
    tokenizer = load_tokenizer(folder, set())
    for kind in ("image", "audio", "image_url"):
        parts = [{"type": "text", "text": "What is this?"}, {"type": kind}]
        with pytest.raises(MisuseError, match=f"images and audio are not supported .given: {kind}"):
            render(tokenizer, [{"role": "user", "content": parts}])


def test_without_a_template(folder, tmp_path):
    tiny_tokenizer.write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(UserError, match="no chat template"):
        render(load_tokenizer(tmp_path, set()), MESSAGES)


def test_later_turns_share_everything_but_what_asks_for_the_reply(folder):
    tokenizer = load_tokenizer(folder, set())
    plain = render(tokenizer, MESSAGES)
    assert shared_prefix(tokenizer, MESSAGES) == len(plain)
    tokenizer.chat_template += "{% if add_generation_prompt %}<|channel>thought\n<channel|>{% endif %}"
    asking = render(tokenizer, MESSAGES)
    assert asking[: len(plain)] == plain and len(asking) > len(plain)
    assert shared_prefix(tokenizer, MESSAGES) == len(plain)
