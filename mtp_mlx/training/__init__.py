"""Trains an MTP drafter on a frozen target."""

from mtp_mlx.training.checkpoint import save_drafter
from mtp_mlx.training.examples import Examples, observe
from mtp_mlx.training.initialize import new_drafter
from mtp_mlx.training.loss import Objective
from mtp_mlx.training.text import continue_prompts
from mtp_mlx.training.trainer import Trainer

__all__ = ["Examples", "Objective", "Trainer", "continue_prompts", "new_drafter", "observe", "save_drafter"]
