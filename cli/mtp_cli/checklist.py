"""Findings as lines of ✓, ! and ✗."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mtp_mlx.doctor import Check

EXIT_CODES = {"ok": 0, "warning": 2, "error": 1}
_SIGNS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


def print_checks(checks: "Sequence[Check]") -> None:
    """Prints a line for each to stdout, and under it what to do."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    width = max(len(check.name) for check in checks)
    for check in checks:
        sign, style = _SIGNS[check.state]
        console.print(Text.assemble((sign, style), f" {check.name:<{width}}  {check.text}"), soft_wrap=True)
        if check.fix:
            console.print(Text(f"  {'':<{width}}  → {check.fix}", "dim"), soft_wrap=True)
