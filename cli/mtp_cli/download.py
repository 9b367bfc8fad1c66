"""Downloads with a bar for each file."""

from functools import cache
from pathlib import Path

from mtp_cli.console import transfer_bars


def download(repo: str, revision: str | None = None) -> Path:
    """The folder of a repository's snapshot; shows what is fetched."""
    from huggingface_hub.utils import disable_progress_bars

    from mtp_weights.hub import download as download_from_hub

    disable_progress_bars()  # the client's own would stand beside ours
    with transfer_bars() as progress:
        return download_from_hub(repo, revision, progress=progress)


@cache
def bring(name: str, revision: str | None = None) -> Path:
    """The folder that a name stands for; downloads it unless it is on this machine. The hub is asked once in a run."""
    from mtp_weights.locate import is_local, repository, resolve

    return resolve(name, revision) if is_local(name) else resolve(str(download(repository(name), revision)))
