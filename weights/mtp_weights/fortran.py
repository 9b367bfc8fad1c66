"""GNU Fortran's runtime library for OpenBLAS, on a Linux that has none installed.

The wheels of OpenBLAS that have BLAS's own symbol names ask the system for `libgfortran.so.5`, which a fresh Debian
lacks. MLX's Linux CPU wheel brings that very library, under a name that only MLX looks for. The loader goes by the
name that a library gives itself, so a copy of it in memory with its common name serves OpenBLAS.
"""

import ctypes
import os
from importlib.util import find_spec
from pathlib import Path

COMMON_NAME = "libgfortran.so.5"


def load_fortran() -> None:
    """Loads MLX's copy of the Fortran runtime under its common name, where MLX brings one.

    Raises:
        OSError: it does not load.
    """
    folder = _libraries_of_mlx()
    for library in folder.glob("libquadmath-*"):  # which it needs on some processors
        ctypes.CDLL(str(library))
    for library in folder.glob("libgfortran-*"):
        _load_renamed(library, COMMON_NAME)


def _load_renamed(library: Path, name: str) -> None:
    own = library.name.encode() + b"\0"
    content = library.read_bytes().replace(own, name.encode().ljust(len(own), b"\0"))
    with open(os.memfd_create(name), "wb") as memory:
        memory.write(content)
        memory.flush()
        ctypes.CDLL(f"/proc/self/fd/{memory.fileno()}")


def _libraries_of_mlx() -> Path:
    """The folder of libraries beside MLX that its wheel `mlx-cpu` fills; it need not be there."""
    spec = find_spec("mlx")
    return Path(next(iter(spec.submodule_search_locations))).parent / "mlx_cpu.libs"
