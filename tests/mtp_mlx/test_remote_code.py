"""A checkpoint that brings code: it is never run, nobody is asked whether it may, and pickles are never opened."""

import json
import pickle
from pathlib import Path

import pytest

from mtp_mlx import load
from mtp_mlx.convert import Options, convert
from mtp_mlx.errors import UserError
from tests import tiny_tokenizer
from tests.tiny import target_config, write_target

CODE = "from pathlib import Path\nPath(__file__).with_name('it-ran').touch()\nclass Custom: pass\n"
AUTO_MAP = {
    "AutoConfig": "custom.Custom",
    "AutoModelForCausalLM": "custom.Custom",
    "AutoTokenizer": ["custom.Custom", "custom.Custom"],
}


@pytest.fixture
def checkpoint(tmp_path, monkeypatch) -> Path:
    def ask(*_):
        raise AssertionError("the user was asked whether to run the code")

    monkeypatch.setattr("builtins.input", ask)
    config = target_config("e2b", vocab_size=tiny_tokenizer.VOCAB_SIZE, vocab_size_per_layer_input=384)
    folder = write_target(tmp_path / "checkpoint", {**config, "auto_map": AUTO_MAP, "model_file": "custom.py"})
    tiny_tokenizer.write_tokenizer(folder)
    (folder / "custom.py").write_text(CODE)
    change(folder, "tokenizer_config.json", auto_map=AUTO_MAP)
    return folder


def change(folder: Path, name: str, **values) -> None:
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**content, **values}))


def ran(folder: Path) -> bool:
    return any(folder.parent.rglob("it-ran"))


def test_code_beside_the_weights_is_not_run(checkpoint):
    _, tokenizer = load(checkpoint)
    assert tokenizer.encode("the")
    assert not ran(checkpoint)


@pytest.mark.parametrize("name", ["Custom", "custom.Custom", "../custom"])
def test_a_tokenizer_class_of_its_own(checkpoint, name):
    change(checkpoint, "tokenizer_config.json", tokenizer_class=name)
    try:
        load(checkpoint)
    except UserError as error:
        assert "cannot read the tokenizer" in str(error)
    assert not ran(checkpoint)


@pytest.mark.parametrize("name", ["os", "../custom", "..custom", "custom"])
def test_a_tool_parser_or_template_of_its_own(checkpoint, name):
    change(checkpoint, "tokenizer_config.json", tool_parser_type=name, chat_template_type=name)
    try:
        load(checkpoint)
    except UserError as error:
        assert "cannot read the tokenizer" in str(error)
    assert not ran(checkpoint)


class Bomb:
    def __reduce__(self):
        return (open, ("it-ran", "w"))


def test_pickles_are_never_opened(checkpoint, monkeypatch):
    monkeypatch.chdir(checkpoint)
    (checkpoint / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "model.pt", "consolidated.00.pth"):
        (checkpoint / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match="in a pickle file, which can run any code and is never opened"):
        load(checkpoint)
    assert not ran(checkpoint)


def test_a_conversion_runs_none_and_copies_none(checkpoint, tmp_path):
    convert(checkpoint, tmp_path / "converted", Options(quantize=True))
    assert not ran(checkpoint)
    assert not list((tmp_path / "converted").glob("*.py"))
