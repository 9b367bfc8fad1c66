"""The user-facing exceptions; they live in `mtp_weights`, the lowest layer that raises them."""

from mtp_weights.errors import MisuseError, UserError

__all__ = ["MisuseError", "UserError"]
