"""`mtp pull`: downloads a target and the drafter that belongs to it. stdout has the folders they lie in."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mtp_cli.console import note
from mtp_cli.download import download
from mtp_weights.errors import MisuseError


def pull(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A short name (`mtp models`) or a repository owner/name.")
    ],
    revision: Annotated[
        str | None,
        typer.Option("--revision", metavar="REV", help="Branch, tag or commit of NAME; else its main branch."),
    ] = None,
    drafter_only: Annotated[
        bool, typer.Option("--drafter-only", help="Download only the drafter that belongs to NAME.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Download a model and its drafter; an interrupted download goes on where it stopped."""
    from mtp_weights.locate import is_local, repository

    if is_local(name):
        raise MisuseError("only repositories can be pulled", given=name, fix="a folder can be used as it is")
    folders = _pull(repository(name), revision, drafter_only)
    if as_json:
        print(json.dumps({role: str(folder) for role, folder in folders.items()}))
    else:
        for folder in folders.values():
            print(folder)


def _pull(repo: str, revision: str | None, drafter_only: bool) -> dict[str, Path]:
    """Role -> folder, of what was asked for; what it is, its config.json says before any weights are fetched."""
    from mtp_mlx.models.gemma4_config import DRAFTER_TYPES
    from mtp_mlx.models.registry import TARGET_TYPES, check_model_type, target_config
    from mtp_weights.hub import download_config
    from mtp_weights.pairs import choose_drafter, known_drafter

    raw = download_config(repo, revision)
    check_model_type(raw, (*TARGET_TYPES, *DRAFTER_TYPES), "model")
    if raw["model_type"] in DRAFTER_TYPES:
        return {"drafter": download(repo, revision)}
    config = target_config(raw)
    find = choose_drafter if drafter_only else known_drafter
    drafter = find(repo, config.model_type, config.hidden_size)
    folders = {} if drafter_only else {"target": download(repo, revision)}
    if drafter is None:
        note("no drafter is known for this target")
        return folders
    note(f"drafter: {drafter.name}, because {drafter.reason}")
    return {**folders, "drafter": download(drafter.name, None)}
