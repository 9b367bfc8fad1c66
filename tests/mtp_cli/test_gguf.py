"""A GGUF file becomes a folder that every command takes; with a drafter for it, too."""

import pytest

from tests import gguf_files, tiny
from tests.mtp_cli.conftest import error_line, mtp
from tests.tiny_bpe import VOCAB_SIZE

CONFIG = tiny.target_config("llama", vocab_size=VOCAB_SIZE, max_position_embeddings=1024)
LIMIT = ("--max-tokens", "12", "--temp", "0")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[str, str, str]:
    """A GGUF file, what became of it, and a drafter."""
    folder = tmp_path_factory.mktemp("gguf")
    weights = tiny.random_weights(tiny.build_target(CONFIG))
    file = gguf_files.write(folder / "model.gguf", *gguf_files.of_target(CONFIG, weights))
    result = mtp("convert", "--hf-path", str(file), "--mlx-path", str(folder / "target"), "--dtype", "float32")
    assert (result.exit_code, result.stdout) == (0, f"{folder / 'target'}\n"), result.stderr
    drafter = tiny.write_drafter(folder / "drafter", tiny.drafter_config(CONFIG, clustered=True))
    return str(file), str(folder / "target"), str(drafter)


def test_generate_is_the_same_with_a_drafter_and_without(folders):
    _, target, drafter = folders
    plain = mtp("generate", "--model", target, "--no-draft", "-p", "the ball", *LIMIT)
    drafted = mtp("generate", "--model", target, "--draft-model", drafter, "-p", "the ball", *LIMIT)
    assert plain.exit_code == drafted.exit_code == 0, plain.stderr + drafted.stderr
    assert plain.stdout == drafted.stdout and plain.stdout.strip()
    assert "tokens a round" in drafted.stderr and "tokens a round" not in plain.stderr


def test_chat_and_its_commands(folders):
    _, target, drafter = folders
    lines = "the ball\n/undo\nthe ball\n/clear\nthe ball\n/quit\n"
    result = mtp("chat", "--model", target, "--draft-model", drafter, *LIMIT, given=lines)
    reply = result.stdout[: len(result.stdout) // 3]
    assert reply.strip() and result.stdout == 3 * reply  # each time from the beginning
    assert "the conversation begins anew" in result.stderr


def test_no_drafter_is_known(folders):
    line = error_line(mtp("generate", "--model", folders[1], "-p", "a"), 1)
    assert line.startswith("no drafter: no drafter is known for a llama target of hidden size 64 ")
    assert line.endswith("(--no-draft decodes without one)")


def test_a_file_is_no_folder(folders):
    line = error_line(mtp("generate", "--model", folders[0], "--no-draft", "-p", "a"), 1)
    assert line.startswith("a checkpoint is a folder, not a file")
    assert line.endswith(f"mtp convert --hf-path {folders[0]} makes one")


def test_misuse(folders, tmp_path):
    arguments = ["convert", "--hf-path", folders[0], "--mlx-path", str(tmp_path / "out"), "-q"]
    assert "a GGUF file has no revision" in error_line(mtp(*arguments, "--measure", "auto"), 2)
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    line = error_line(mtp("convert", "--hf-path", str(tmp_path / "a.gguf"), "--mlx-path", str(tmp_path / "o"), "-q"), 1)
    assert line.startswith("the GGUF file is damaged")
    assert not (tmp_path / "o").exists()
