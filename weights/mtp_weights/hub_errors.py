"""Why a download failed, in one line each."""

import errno

from huggingface_hub import constants
from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RevisionNotFoundError,
)

from mtp_weights.errors import UserError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
_LOG_IN = "log in with `hf auth login`"
# HTTP status -> what it means here, and how to mend it. 401 is the hub's answer for unknown names, too.
_STATUS = {
    401: ("the hub asks for a login, or there is no such repository", f"check the name, or {_LOG_IN}"),
    403: ("the hub refuses access to the repository", f"ask its owner for access, then {_LOG_IN}"),
    404: ("no such repository on the hub, and no such local folder", "check the name"),
    429: ("the hub wants fewer requests", f"wait some minutes, or {_LOG_IN}"),
}


def explain(error: BaseException, repo: str, revision: str | None) -> UserError:
    """The error to show for what `snapshot_download` raised."""
    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        return explain(error.__cause__, repo, revision)
    if isinstance(error, HfHubHTTPError):
        return _refused(error, repo, revision)
    if isinstance(error, OfflineModeIsEnabled):
        return UserError(
            "the repository is not in the cache, and the hub's client is set to work offline",
            given=repo,
            fix="unset HF_HUB_OFFLINE, or name a local folder",
        )
    if _no_space(error):
        return UserError(
            "no space left for the download",
            given=repo,
            fix=f"free some space in {constants.HF_HUB_CACHE} and run it again: it goes on where it stopped",
        )
    if isinstance(error, OSError) and error.errno in _READ_ONLY:
        return UserError("the download cache cannot be written", given=error, fix="check its permissions")
    return UserError(
        "cannot reach the hub, and the cache has no complete copy",
        given=f"{repo}: {_first_line(error)}",
        fix="check the connection and run it again: it goes on where it stopped",
    )


def _refused(error: HfHubHTTPError, repo: str, revision: str | None) -> UserError:
    """The hub answered, with an error."""
    if isinstance(error, GatedRepoError):
        fix = f"accept its terms on its page on the hub, then {_LOG_IN}"
        return UserError("the repository is gated", given=repo, fix=fix)
    if isinstance(error, RevisionNotFoundError):
        return UserError("the repository has no such revision", given=f"{repo} at {revision}", fix="check it")
    if isinstance(error, EntryNotFoundError):
        fix = "name a repository with a checkpoint in safetensors format"
        return UserError("the repository lacks a file that a checkpoint has", given=f"{repo}: {_asked(error)}", fix=fix)
    if isinstance(error, DisabledRepoError):
        return UserError("the hub has disabled the repository", given=repo, fix="use another one")
    status = error.response.status_code
    if status not in _STATUS:
        return UserError(f"the hub answers with error {status}", given=repo, fix="try again later")
    problem, fix = _STATUS[status]
    return UserError(f"{problem} ({status})", given=repo, fix=fix)


def _asked(error: HfHubHTTPError) -> str:
    """The file that the hub was asked for."""
    return error.response.url.path.rsplit("/", 1)[-1]


def _no_space(error: BaseException) -> bool:
    """The Rust part of the client has no errno, only the system's text."""
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        return True
    return any(f"os error {number}" in str(error) for number in _NO_SPACE)


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
