"""`mtp` itself: help, version, that help needs no heavy import, and what the system can do to it."""

import errno
import os
import subprocess
import sys

import pytest

from mtp_cli.console import Output
from mtp_cli.main import run
from mtp_mlx import __version__
from tests.mtp_cli.conftest import error_line, mtp


def test_help_lists_the_commands():
    for arguments in (["--help"], ["-h"], []):
        result = mtp(*arguments)
        assert result.exit_code == 0 and result.stderr == ""
        commands = result.stdout.split("Commands:\n")[1].splitlines()
        assert [line.split()[0] for line in commands[:3]] == ["chat", "generate", "bench"]
        assert "..." not in result.stdout.split("Commands:\n")[1]  # no summary is cut off


@pytest.mark.parametrize("command", ["chat", "generate", "bench"])
def test_help_fits_80_columns(command):
    result = mtp(command, "--help")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_version():
    assert mtp("--version").stdout.startswith(f"mtp {__version__} (MLX ")


def test_help_imports_nothing_heavy():
    script = """
import sys
from mtp_cli.main import run
try:
    run()
except SystemExit:
    heavy = ("mlx", "mlx_lm", "transformers", "numpy", "mtp_mlx", "rich", "prompt_toolkit", "jinja2", "asyncio")
    print([name for name in heavy if name in sys.modules])
"""
    process = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[-1] == "[]"


def test_a_full_disk_is_one_line(pair, monkeypatch):
    def write(self, text, style=""):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Output, "write", write)
    line = error_line(mtp("generate", "-p", "hello", *pair.options), 1)
    assert line == "[Errno 28] No space left on device"


def test_a_closed_stdin_is_an_empty_one(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(sys, "argv", ["mtp", "generate", "--prompt", "-"])
    with pytest.raises(SystemExit) as end:
        run()
    assert end.value.code == 2
    assert sys.stdin.read() == ""


def test_a_closed_stdout_is_no_error(pair, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "argv", ["mtp", "generate", "-p", "hello", "--max-tokens", "3", *pair.options])
    with pytest.raises(SystemExit) as end:
        run()
    assert not end.value.code
