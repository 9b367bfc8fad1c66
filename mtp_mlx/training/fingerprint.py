"""Short names for the contents of checkpoints and texts, to tell whether two runs see the same."""

import hashlib
from pathlib import Path

import numpy as np

SAMPLES, SAMPLE_BYTES = 64, 4096  # read of a large file: a gigabyte is told apart from another in a moment


def of_folder(folder: Path) -> str:
    """Of the configuration, weights and tokenizer in a folder; of large files, their size and samples of them."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix in (".json", ".safetensors") and file.is_file():
            digest.update(file.name.encode() + b"\0" + _content(file))
    return digest.hexdigest()[:16]


def of_arrays(*arrays: np.ndarray) -> str:
    """Of shapes and contents."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr((array.shape, array.dtype.str)).encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def _content(file: Path) -> bytes:
    size = file.stat().st_size
    if size <= SAMPLES * SAMPLE_BYTES:
        return file.read_bytes()
    parts = [str(size).encode()]
    with file.open("rb") as opened:
        for n in range(SAMPLES):
            opened.seek(n * (size - SAMPLE_BYTES) // (SAMPLES - 1))
            parts.append(opened.read(SAMPLE_BYTES))
    return b"".join(parts)
