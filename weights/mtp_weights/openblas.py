"""OpenBLAS for MLX on Linux.

MLX's Linux CPU wheels link the reference BLAS (about 2 GFLOP/s in float32). Symbols of a library that is loaded
globally before MLX take precedence, so loading OpenBLAS first makes float32 matrix products 40–80 times faster.
It has to happen before `mlx.core` is imported; importing `mlx.core` first therefore keeps the reference BLAS, with
which a row's result does not depend on how many rows are computed together. The bit-exactness tests rely on that.
"""

import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path

_USERS_SETTINGS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_loaded: ctypes.CDLL | None = None


def load_openblas() -> str:
    """Loads OpenBLAS for MLX where that helps.

    Returns:
        What float32 matrix products run on: "accelerate" (macOS), "openblas", or "reference" (MLX's own, because
        MLX was imported first or no OpenBLAS is installed).
    """
    if sys.platform == "darwin":
        return "accelerate"
    library = _find_library()
    if "mlx.core" in sys.modules or library is None:
        return "reference"
    global _loaded
    _loaded = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    return "openblas"


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
