"""OpenBLAS for MLX on Linux.

MLX's Linux CPU wheels link the reference BLAS (about 2 GFLOP/s in float32). Symbols of a library that is loaded
globally before MLX take precedence, so loading OpenBLAS first makes float32 matrix products 40–80 times faster.
It has to happen before `mlx.core` is imported; importing `mlx.core` first therefore keeps the reference BLAS, with
which a row's result does not depend on how many rows are computed together. The bit-exactness tests rely on that.
"""

import ctypes
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from mtp_weights.fortran import load_fortran

_USERS_SETTINGS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_loaded: ctypes.CDLL | None = None


@dataclass(frozen=True)
class Blas:
    """What float32 matrix products run on, on a CPU.

    Attributes:
        name: "accelerate" (macOS), "openblas", or "reference" (MLX's own).
        problem: what was missing for OpenBLAS; None where nothing was, or MLX was imported first.
        fix: how to mend it.
    """

    name: str
    problem: str | None = None
    fix: str | None = None


def load_openblas() -> Blas:
    """Loads OpenBLAS for MLX where that helps. Where it cannot be loaded MLX works all the same, slowly."""
    if sys.platform == "darwin":
        return Blas("accelerate")
    if "mlx.core" in sys.modules:
        return Blas("reference")
    library = _find_library()
    if library is None:
        return Blas("reference", "cmeel-openblas is not installed", "pip install cmeel-openblas")
    global _loaded
    try:
        _loaded = _load(library)
    except OSError as error:
        return Blas("reference", str(error), _fix(str(error)))
    return Blas("openblas")


def use_threads(single: bool) -> None:
    """Lets OpenBLAS compute on one thread, or on as many as it started with. A user's own setting stands.

    It shares out any product of more than 9,216 weights, and where products are small, waiting for each other takes
    longer than what is gained. Not while anything is being computed.
    """
    if _loaded is not None and not any(name in os.environ for name in _USERS_SETTINGS):
        _loaded.openblas_set_num_threads(1 if single else os.cpu_count())


def _find_library() -> Path | None:
    """libopenblas.so of the PyPI package `cmeel-openblas`, or None."""
    spec = find_spec("cmeel")
    if spec is None or spec.origin is None:
        return None
    library = Path(spec.origin).parents[1] / "cmeel.prefix" / "lib" / "libopenblas.so"
    return library if library.exists() else None


def _load(library: Path) -> ctypes.CDLL:
    """The library for all who come after; with the Fortran runtime that MLX brings where the system has none."""
    try:
        return ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    except OSError:
        with suppress(OSError):  # the second try says what is missing
            load_fortran()
    return ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


def _fix(problem: str) -> str:
    return "apt install libgfortran5" if "libgfortran" in problem else "pip install --force-reinstall cmeel-openblas"
