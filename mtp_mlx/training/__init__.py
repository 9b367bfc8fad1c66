"""Trains an MTP drafter on a frozen target."""

from mtp_mlx.training.batches import Batches
from mtp_mlx.training.checkpoint import save_drafter
from mtp_mlx.training.documents import read_documents
from mtp_mlx.training.evaluate import Evaluation, evaluate
from mtp_mlx.training.initialize import new_drafter
from mtp_mlx.training.loss import Objective
from mtp_mlx.training.rows import Rows, pack
from mtp_mlx.training.run import Run
from mtp_mlx.training.settings import Settings
from mtp_mlx.training.shape import Shape, drafter_config
from mtp_mlx.training.store import Observations, Store, observe
from mtp_mlx.training.text import continue_prompts
from mtp_mlx.training.trainer import Trainer

__all__ = [
    "Batches",
    "Evaluation",
    "Objective",
    "Observations",
    "Rows",
    "Run",
    "Settings",
    "Shape",
    "Store",
    "Trainer",
    "continue_prompts",
    "drafter_config",
    "evaluate",
    "new_drafter",
    "observe",
    "pack",
    "read_documents",
    "save_drafter",
]
