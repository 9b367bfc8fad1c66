"""Refuses images, audio and video that someone drops into a message: a terminal pastes the path of the file."""

import mimetypes
import shlex
from pathlib import Path

from mtp_weights.errors import UserError

KINDS = ("image", "audio", "video")


def refuse_media(text: str) -> None:
    """Raises UserError where a word of `text` names an existing file that is no text."""
    for word in _words(text):
        kind = (mimetypes.guess_type(word)[0] or "").split("/")[0]
        if kind in KINDS and _exists(word):
            raise UserError(
                "messages must be text: images, audio and video are not supported",
                given=word,
                fix="begin the line with a blank to send it as text",
            )


def _words(text: str) -> list[str]:
    if text.startswith(" "):
        return []
    try:
        return shlex.split(text)  # dropped paths come quoted, or with backslashes before blanks
    except ValueError:
        return text.split()


def _exists(name: str) -> bool:
    try:
        return Path(name).expanduser().is_file()
    except (OSError, RuntimeError):  # too long to be a path; no home
        return False
