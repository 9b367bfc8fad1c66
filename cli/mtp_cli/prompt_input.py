"""Where the prompt of a generation comes from, and how it becomes token ids."""

import json
import sys
from pathlib import Path
from typing import Any

from mtp_cli.console import note
from mtp_cli.pair import Pair
from mtp_weights.errors import MisuseError, UserError


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt that the options name: a text, stdin for '-', or a file.

    Raises:
        MisuseError: none or both were given, or it is empty.
        UserError: it cannot be read, or is no UTF-8.
    """
    if (prompt is None) == (file is None):
        raise MisuseError("one prompt is needed", fix="give --prompt TEXT, --prompt - for stdin, or --prompt-file FILE")
    if file is not None:
        text = _decode(_read_file(file), str(file))
    elif prompt == "-":
        text = _decode(sys.stdin.buffer.read(), "stdin")
    else:
        text = prompt
    if not text.strip():
        raise MisuseError("the prompt is empty", fix="give it some text")
    return text


def template_options(text: str | None) -> dict[str, Any]:
    """The variables for the chat template that `--chat-template-config` gives as a JSON object."""
    try:
        options = {} if text is None else json.loads(text)
    except ValueError as error:
        raise MisuseError("--chat-template-config must be JSON", given=error) from error
    if not isinstance(options, dict):
        raise MisuseError("--chat-template-config must be a JSON object", given=text)
    return options


def prompt_ids(
    pair: Pair, text: str, system_prompt: str | None, raw: bool, reply: str | None, options: dict[str, Any]
) -> list[int]:
    """Token ids of the prompt: through the chat template, unless `raw` is asked for or there is none.

    Args:
        reply: how the reply shall begin, or None.
        options: for the template.
    """
    from mtp_mlx.chat_template import render
    from mtp_mlx.generate import tokenize

    if not raw and not pair.tokenizer.has_chat_template:
        if system_prompt is not None or reply is not None:
            given = "a system prompt" if system_prompt is not None else "the beginning of a reply"
            raise UserError(f"the model has no chat template for {given}", fix="put it in the prompt")
        note("the model has no chat template: it continues the prompt as it is")
        raw = True
    if raw:
        return tokenize(pair.tokenizer, text)
    messages = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    return render(pair.tokenizer, [*messages, {"role": "user", "content": text}], reply=reply, **options)


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(
            "cannot read the prompt file", given=f"{file}: {error.strerror}", fix="check the path"
        ) from error


def _decode(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError("the prompt must be UTF-8 text", given=f"{source}, byte {error.start}") from error
