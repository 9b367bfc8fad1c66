"""MLX is imported before mtp_mlx, so it keeps its reference BLAS: then every width of a forward pass gives the same
bits, and the tests can demand equality (see mtp_weights/openblas.py)."""

import mlx.core as mx  # noqa: F401
