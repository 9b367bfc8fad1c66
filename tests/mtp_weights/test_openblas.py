"""Loading OpenBLAS: what happens where it, or the Fortran runtime that it needs, is missing. In processes of their own
where it loads, because a library that is loaded stays."""

import subprocess
import sys

import pytest

from mtp_weights import fortran, openblas
from mtp_weights.openblas import Blas, load_openblas

LIBRARY = openblas._find_library()
needs_library = pytest.mark.skipif(LIBRARY is None, reason="no cmeel-openblas here")


@pytest.fixture
def before_mlx(monkeypatch):
    """As in a process that has not imported MLX yet."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delitem(sys.modules, "mlx.core")


def run(script: str) -> str:
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_after_mlx_it_is_left_alone():
    assert load_openblas().name in ("reference", "accelerate")


def test_without_the_package(monkeypatch, before_mlx):
    monkeypatch.setattr(openblas, "_find_library", lambda: None)
    assert load_openblas() == Blas("reference", "cmeel-openblas is not installed", "pip install cmeel-openblas")


def test_a_library_that_is_none(monkeypatch, before_mlx, tmp_path):
    (tmp_path / "libopenblas.so").write_bytes(b"no library")
    monkeypatch.setattr(openblas, "_find_library", lambda: tmp_path / "libopenblas.so")
    found = load_openblas()
    assert (found.name, found.fix) == ("reference", "pip install --force-reinstall cmeel-openblas")
    assert "libopenblas.so" in found.problem


@needs_library
def test_without_a_fortran_runtime_the_reason_is_kept(monkeypatch, before_mlx, tmp_path):
    """A copy that asks for a version of the runtime that nobody has."""
    library = tmp_path / "libopenblas.so"
    library.write_bytes(LIBRARY.read_bytes().replace(b"libgfortran.so.5\0", b"libgfortran.so.0\0"))
    monkeypatch.setattr(openblas, "_find_library", lambda: library)
    problem = "libgfortran.so.0: cannot open shared object file: No such file or directory"
    assert load_openblas() == Blas("reference", problem, "apt install libgfortran5")


@needs_library
def test_the_fortran_runtime_that_mlx_brings_serves():
    """Loaded first it is the one that OpenBLAS gets, also where the system has its own."""
    script = f"""
import ctypes, runpy
runpy.run_path({fortran.__file__!r})["load_fortran"]()
ctypes.CDLL({str(LIBRARY)!r}, ctypes.RTLD_GLOBAL).openblas_set_num_threads(1)
import mlx.core as mx
assert ((mx.full((64, 64), 2.0) @ mx.full((64, 64), 0.5)) == 64).all().item()
print({{line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if "libgfortran.so.5" in line}})
"""
    assert run(script) == str({"/memfd:libgfortran.so.5 (deleted)"})


@needs_library
def test_importing_the_package_loads_it():
    assert run("import mtp_weights; print(mtp_weights.BLAS)") == str(Blas("openblas"))
