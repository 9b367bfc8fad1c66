"""Reads a JSON object from a file, with errors for people."""

import json
from pathlib import Path
from typing import Any

from mtp_weights.errors import UserError


def read_object(path: Path) -> dict[str, Any]:
    """Reads the JSON object in `path`.

    Raises:
        UserError: the file cannot be read, is not JSON, or holds something else than an object.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path.name}", given=f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path.name} is not valid JSON", given=f"{path}: {error}", fix="download it again") from error
    if not isinstance(value, dict):
        raise UserError(f"{path.name} must hold a JSON object", given=f"{path}: {type(value).__name__}")
    return value
