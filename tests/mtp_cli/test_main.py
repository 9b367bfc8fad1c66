"""`mtp` itself: help, version, and that help needs no heavy import."""

import subprocess
import sys

import pytest

from mtp_mlx import __version__
from tests.mtp_cli.conftest import mtp


def test_help_lists_the_commands():
    for arguments in (["--help"], ["-h"], []):
        result = mtp(*arguments)
        assert result.exit_code == 0 and result.stderr == ""
        assert all(f"\n  {command} " in result.stdout for command in ("chat", "generate", "bench"))


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
    print([name for name in ("mlx", "mlx_lm", "transformers", "numpy", "mtp_mlx") if name in sys.modules])
"""
    process = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[-1] == "[]"
