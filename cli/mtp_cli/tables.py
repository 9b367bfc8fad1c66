"""Tables on stdout: ruled on a terminal, plain text of a fixed width in a pipe."""

from rich import box
from rich.console import Console
from rich.table import Table

PIPED_WIDTH = 120


def stdout(piped_width: int = PIPED_WIDTH) -> Console:
    """The console for results."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=piped_width)


def new_table(console: Console) -> Table:
    """An empty table for that console."""
    return Table(box=box.SIMPLE_HEAD if console.is_terminal else None, show_edge=False, pad_edge=False)
