"""Run Gemma 4 on MLX with its multi-token-prediction drafters: faster, with the same output.

An extension of mlx-lm: the same `load`, `stream_generate` and `generate`, with a `draft_model`.
"""

import mtp_weights  # noqa: F401  first, so that OpenBLAS is loaded before MLX
from mtp_mlx.batching import BatchGenerator, BatchResponse, BatchStats, BatchToken, PromptProgress, batch_generate
from mtp_mlx.errors import MisuseError, UserError
from mtp_mlx.generate import (
    GenerationResponse,
    draft_tokens,
    generate,
    generate_step,
    stream_generate,
)
from mtp_mlx.load import as_target, load, load_drafter, load_model
from mtp_mlx.sampler import make_sampler
from mtp_mlx.speculation import Speculation

__version__ = "0.1.0"

__all__ = [
    "BatchGenerator",
    "BatchResponse",
    "BatchStats",
    "BatchToken",
    "GenerationResponse",
    "MisuseError",
    "PromptProgress",
    "Speculation",
    "UserError",
    "as_target",
    "batch_generate",
    "draft_tokens",
    "generate",
    "generate_step",
    "load",
    "load_drafter",
    "load_model",
    "make_sampler",
    "stream_generate",
]
