"""`mtp models`: the targets there are, what they weigh, and whether they fit this machine."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from mtp_cli import options
from mtp_cli.console import note, status

if TYPE_CHECKING:
    from mtp_mlx.catalog import Entry

DEFAULT_CONTEXT = 8192


def models(
    context: Annotated[
        int,
        typer.Option(
            metavar="N", help="Tokens, prompt and reply, to count memory for.", callback=options.positive("--context")
        ),
    ] = DEFAULT_CONTEXT,
    everything: Annotated[bool, typer.Option("--all", help="List every conversion, not only the usual ones.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List the models, their sizes, and what fits this machine."""
    with status("looking at models and cache"):
        from mtp_mlx.catalog import entries
        from mtp_mlx.memory import available, gigabytes

        listed = entries(context, everything)
    if as_json:
        print(json.dumps([entry.to_dict() for entry in listed]))
        return
    _print(listed, context)
    note(
        f"This machine has {gigabytes(available())} for a model. ~ is computed from the configuration and leaves out "
        "image and audio towers, which some repositories have. `mtp pull NAME` downloads a model and its drafter."
    )


def _print(listed: "list[Entry]", context: int) -> None:
    from mtp_cli.tables import new_table, stdout
    from mtp_mlx.memory import gigabytes

    console = stdout(160)
    table = new_table(console)
    for name in ("name", "drafter", "bits", "download", f"memory at {context}", "fits", "cached"):
        justify = "right" if name.startswith(("bits", "down", "memory")) else "left"
        table.add_column(name, justify=justify, no_wrap=name != "drafter", overflow="ellipsis")  # names stay whole
    for entry in listed:
        size = ("~" if entry.is_estimate else "") + gigabytes(entry.download_bytes)
        fits = "yes" if entry.fits else "no"
        memory = gigabytes(entry.needed_bytes)
        table.add_row(
            entry.name, entry.drafter.split("/")[-1], entry.bits, size, memory, fits, entry.cached,
            style="" if entry.fits else "dim",
        )  # fmt: skip
    console.print(table)
