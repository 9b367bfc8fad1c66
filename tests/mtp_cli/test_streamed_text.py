"""What the commands write is the decoded text, to the byte: emoji, CJK, combining marks, bytes, broken sequences.

The target is one whose every token has one successor, so that it says a text that is known beforehand; one drafter
always drafts it right and one wrong, so that characters come whole in one round, or a byte at a time.
"""

import json
import re
import sys
import unicodedata
from pathlib import Path

import mlx.core as mx
import pytest

from tests import tiny, tiny_tokenizer
from tests.mtp_cli.conftest import mtp, target_config
from tests.mtp_cli.terminal import Terminal


def bytes_of(text: str) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in text.encode()]


# Each token comes once, and so does each byte.
SAID = ["▁a", "▁b", *bytes_of("🎉"), "▁the", *bytes_of("⌛"), ",", *bytes_of("日"), "o", *bytes_of("\u0301"), "▁s", "x"]
SAID += [*bytes_of("½"), "z", "<0xFF>", "y"]  # the last byte belongs to no character
TEXT = " a b🎉 the⌛,日o\u0301 sx½z\ufffdy"
END = "<turn|>"


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> str:
    config = target_config()
    weights = tiny.random_weights(tiny.build_target(config))
    silenced = ("post_attention_layernorm", "post_feedforward_layernorm", "post_per_layer_input_norm")
    weights = {name: array * 0 if name.split(".")[-2] in silenced else array for name, array in weights.items()}
    weights["model.norm.weight"] = mx.ones_like(weights["model.norm.weight"])
    weights["lm_head.weight"] = successors(weights["model.embed_tokens.weight"])
    folder = tmp_path_factory.mktemp("speaker") / "target"
    tiny.write_checkpoint(folder, config, tiny.hugging_face_names(weights))
    tiny_tokenizer.write_tokenizer(folder)
    return str(folder)


def successors(embeddings: mx.array) -> mx.array:
    """A head that says after each token the next one; after a line break, with which the prompt ends, the first one."""
    ids = tiny_tokenizer._vocabulary()
    chain = [ids[token] for token in ("\n", *SAID, END)]
    directions = embeddings / mx.linalg.norm(embeddings, axis=-1, keepdims=True)
    head = mx.zeros_like(embeddings)
    head[mx.array(chain[1:])] = 2 * directions[mx.array(chain[:-1])]
    return head


@pytest.fixture(scope="module", params=["right", "wrong"])
def drafter(request, target, tmp_path_factory) -> str:
    config = tiny.drafter_config(target_config(), clustered=False)
    folder = tmp_path_factory.mktemp("drafter") / request.param
    if request.param == "wrong":
        return str(tiny.write_drafter(folder, config))
    weights = tiny.random_weights(tiny.build_drafter(config))
    silenced = ("post_attention_layernorm", "post_feedforward_layernorm")
    weights = {name: array * 0 if name.split(".")[-2] in silenced else array for name, array in weights.items()}
    size = target_config()["hidden_size"]
    weights["pre_projection.weight"] = mx.concatenate([mx.eye(size), mx.zeros((size, size))], axis=1)
    weights["model.norm.weight"] = mx.ones_like(weights["model.norm.weight"])
    head = mx.load(str(Path(target) / "model.safetensors"))["lm_head.weight"]
    weights["model.embed_tokens.weight"] = head.astype(mx.float32)
    return str(tiny.write_checkpoint(folder, config, weights))


def test_generate(target, drafter):
    options = ("generate", "-p", "hello", "--num-draft-tokens", "3", "--model", target, "--draft-model", drafter)
    assert mtp(*options).stdout_bytes == f"{TEXT}\n".encode()
    report = json.loads(mtp(*options, "--json").stdout_bytes)
    assert report["text"] == TEXT and report["finish_reason"] == "stop"
    assert (report["speculation"]["accepted"] > 10) == drafter.endswith("right")


def test_chat(target, drafter):
    options = ("chat", "--num-draft-tokens", "3", "--model", target, "--draft-model", drafter)
    assert mtp(*options, given="hello\nagain\n").stdout_bytes == f"{TEXT}\n{TEXT}\n".encode()


def test_bench(target, drafter, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text(f"{TEXT}\n", encoding="utf-8")
    options = ("--prompts", str(file), "-n", str(len(SAID)), "--num-draft-tokens", "3", "--json")
    result = mtp("bench", "--model", target, "--draft-model", drafter, *options)
    (prompt,) = json.loads(result.stdout_bytes)["prompts"]
    assert prompt["prompt"] == TEXT and TEXT.encode() in result.stdout_bytes
    ids = tiny_tokenizer._vocabulary()
    for way in ("plain", "mtp"):
        assert prompt["runs"][way][0]["tokens"] == [ids[token] for token in SAID]


@pytest.mark.parametrize("command", [["chat"], ["generate", "-p", "hello"]])
def test_on_a_terminal(target, drafter, tmp_path, command):
    options = ["--num-draft-tokens", "3", "--model", target, "--draft-model", drafter]
    terminal = Terminal([sys.executable, "-c", "from mtp_cli.main import run; run()", *command, *options], tmp_path)
    if command == ["chat"]:
        terminal.expect(r"(^|\n)>>>$")
        terminal.type("hello\r")
    terminal.expect(re.escape(unicodedata.normalize("NFC", TEXT.strip())))  # as pyte keeps combining marks
    terminal.close()
