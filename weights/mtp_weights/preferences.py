"""What was measured to be better for a pair, kept for the next time, in a file of the user's."""

import json
from pathlib import Path

from mtp_weights.errors import UserError
from mtp_weights.json_file import read_object

DRAFT_POSITION = "draft_position"


def file() -> Path:
    """Where it is kept."""
    return Path.home() / ".config" / "mtp" / "pairs.json"


def draft_position(target: str, drafter: str) -> str | None:
    """The better draft position of a pair, or None where none was kept. A file that is damaged counts as none.

    Args:
        target, drafter: the names they are loaded by.
    """
    value = _read().get(_key(target, drafter), {})
    return value.get(DRAFT_POSITION) if isinstance(value, dict) else None


def keep_draft_position(target: str, drafter: str, position: str) -> None:
    """Keeps it.

    Raises:
        UserError: the file cannot be written.
    """
    kept = {**_read(), _key(target, drafter): {DRAFT_POSITION: position}}
    try:
        file().parent.mkdir(parents=True, exist_ok=True)
        file().write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError("cannot keep the draft position", given=f"{file()}: {error.strerror}") from error


def _read() -> dict:
    try:
        return read_object(file()) if file().exists() else {}
    except UserError:
        return {}


def _key(target: str, drafter: str) -> str:
    return f"{target} + {drafter}"
