"""Checkpoints: find, download, check, read, write, pair. Returns configs and arrays, never modules."""

from mtp_weights.openblas import load_openblas

# Before anything imports mlx.core: see openblas.py.
BLAS = load_openblas()
