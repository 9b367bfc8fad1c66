"""`mtp doctor`: what there is to know about this machine before a model is run on it."""

import json
from typing import Annotated

import typer

from mtp_cli.checklist import EXIT_CODES, print_checks
from mtp_cli.console import status


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check machine, software, memory, disk, and the way to the hub.

    The exit code is 0 where all is well, 2 where something could be better, 1 where something will not work.
    """
    with status("looking around"):
        from mtp_mlx.doctor import examine, worst

        checks = examine()
    if as_json:
        print(json.dumps({"state": worst(checks), "checks": [check.to_dict() for check in checks]}))
    else:
        print_checks(checks)
    raise typer.Exit(EXIT_CODES[worst(checks)])
