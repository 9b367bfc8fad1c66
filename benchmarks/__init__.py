"""Comparisons with peers, each a program of its own: `python -m benchmarks.peers`. See README.md."""

# Loads OpenBLAS for MLX, and so for every engine that runs here: it has to come before anything imports mlx.core.
import mtp_weights  # noqa: F401
