"""A tiny pair in checkpoint folders, whose random target writes letters and never a stop id, and ways to run `mtp`."""

import shutil
import string
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import pytest
from typer.testing import CliRunner, Result

from mtp_cli.main import app
from mtp_mlx.models.config import FULL, SLIDING
from tests import tiny, tiny_tokenizer

CONTEXT = 1024


@dataclass(frozen=True)
class Folders:
    """Where the pair lies."""

    target: str
    drafter: str

    @property
    def options(self) -> list[str]:
        return ["--model", self.target, "--draft-model", self.drafter]


@pytest.fixture(scope="session")
def pair(tmp_path_factory) -> Folders:
    folder = tmp_path_factory.mktemp("pair")
    return Folders(str(write_target(folder / "target")), str(write_drafter(folder / "drafter")))


def target_config(**changes) -> tiny.Config:
    sizes = {"vocab_size": tiny_tokenizer.VOCAB_SIZE, "vocab_size_per_layer_input": tiny_tokenizer.VOCAB_SIZE}
    layers = [SLIDING, FULL, SLIDING, FULL]  # two of them shared: the fewest there can be, because tests load it often
    return tiny.target_config("e2b", **sizes, layer_types=layers, max_position_embeddings=CONTEXT, **changes)


def write_target(folder: Path, **changes) -> Path:
    config = target_config(**changes)
    weights = tiny.random_weights(tiny.build_target(config))
    # Logit 0 for everything but letters, which thus are always ahead.
    weights["lm_head.weight"] = mx.where(_letters()[:, None], weights["lm_head.weight"], 0)
    tiny.write_checkpoint(folder, config, tiny.hugging_face_names(weights))
    tiny_tokenizer.write_tokenizer(folder)
    return folder


def write_drafter(folder: Path, **changes) -> Path:
    return tiny.write_drafter(folder, tiny.drafter_config(target_config(**changes), clustered=True))


def _letters() -> mx.array:
    vocabulary = tiny_tokenizer._vocabulary()
    shown = {vocabulary[token] for token in (*string.ascii_lowercase, "▁", "▁the", "ou", "ll")}
    return mx.array([token in shown for token in range(tiny_tokenizer.VOCAB_SIZE)])


def broken(target: str, folder: Path, **files: str | None) -> str:
    """A copy of `target` with some files replaced, or removed; "__" in a name stands for its dot."""
    shutil.copytree(target, folder)
    for name, text in files.items():
        file = folder / name.replace("__", ".")
        file.unlink()
        if text is not None:
            file.write_text(text)
    return str(folder)


def without_template(target: str, folder: Path) -> str:
    """A copy of `target` whose tokenizer has no chat template."""
    return broken(target, folder, tokenizer_config__json='{"tokenizer_class": "PreTrainedTokenizerFast"}')


def mtp(*arguments: str, given: str | bytes = "") -> Result:
    """Runs `mtp` in this process, with `given` as its piped input."""
    return CliRunner().invoke(app, list(arguments), input=given, prog_name="mtp")


def error_line(result: Result, code: int) -> str:
    """The one line on stderr of a command that failed with `code` and printed nothing else."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")
