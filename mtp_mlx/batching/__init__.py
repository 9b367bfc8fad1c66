"""Several sequences at once, with mlx-lm's surface: `BatchGenerator` for those that come and go, `batch_generate`."""

from mtp_mlx.batching.generate import BatchResponse, batch_generate
from mtp_mlx.batching.generator import BatchGenerator
from mtp_mlx.batching.responses import BatchStats, BatchToken, PromptProgress

__all__ = ["BatchGenerator", "BatchResponse", "BatchStats", "BatchToken", "PromptProgress", "batch_generate"]
