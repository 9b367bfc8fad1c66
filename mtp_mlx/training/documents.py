"""Text to train on, from files: plain text, or JSON lines in mlx-lm's formats.

A folder has `train.jsonl` and, where there is one, `valid.jsonl` (or `.txt`), as for `mlx_lm.lora`; without a file of
that name, every text and JSONL file in it is read.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtp_mlx.errors import UserError

TEXT_FILES, LINE_FILES = (".txt", ".md"), (".jsonl", ".json")
_FORMATS = '{"text"}, {"messages"}, {"prompt", "completion"} or {"prompt"}'


@dataclass(frozen=True)
class Document:
    """One text or one conversation.

    Attributes:
        source: file and line, for messages about it.
        text: plain text; None for a conversation.
        messages: OpenAI's form.
        tools: what the chat template is told of tools.
    """

    source: str
    text: str | None = None
    messages: tuple[dict[str, Any], ...] = ()
    tools: Any = None

    @property
    def is_prompt(self) -> bool:
        """Whether it ends where the model's reply would begin."""
        return self.text is None and self.messages[-1]["role"] != "assistant"


@dataclass(frozen=True)
class Documents:
    """What there is to train on, and what to validate with; `valid` is empty where there was no file for it."""

    train: list[Document]
    valid: list[Document]


def read_documents(path: Path) -> Documents:
    """Reads a file, or a folder of files.

    Raises:
        UserError: no such file, an unknown kind of file, a corrupt line (named), or no text in it.
    """
    if not path.exists():
        raise UserError("no such file or folder with training text", given=path, fix="check --data")
    if not path.is_dir():
        return Documents(_read([path]), [])
    train, valid = _named(path, "train"), _named(path, "valid")
    if not train:
        unused = set(valid) | set(_named(path, "test"))
        train = sorted(file for file in path.iterdir() if file.suffix in TEXT_FILES + LINE_FILES and file not in unused)
    if not train:
        kinds = ", ".join(TEXT_FILES + LINE_FILES)
        raise UserError("no training text in the folder", given=path, fix=f"put train.jsonl there, or files of {kinds}")
    return Documents(_read(train), _read(valid) if valid else [])


def _named(folder: Path, stem: str) -> list[Path]:
    return [file for suffix in LINE_FILES + TEXT_FILES if (file := folder / f"{stem}{suffix}").exists()]


def _read(files: list[Path]) -> list[Document]:
    documents = [document for file in files for document in _file(file)]
    if not documents:
        names = ", ".join(str(file) for file in files[:3])
        raise UserError("there is no text in the training data", given=names, fix="name files that hold some")
    return documents


def _file(file: Path) -> Iterator[Document]:
    if file.suffix in LINE_FILES:
        return _lines(file)
    if file.suffix in TEXT_FILES:
        return _text(file)
    kinds = ", ".join(TEXT_FILES + LINE_FILES)
    raise UserError("unknown kind of file with training text", given=file, fix=f"known are {kinds}")


def _text(file: Path) -> Iterator[Document]:
    text = _decoded(_bytes(file), str(file))
    if text.strip():
        yield Document(str(file), text)


def _lines(file: Path) -> Iterator[Document]:
    for number, line in enumerate(_bytes(file).splitlines(), start=1):
        if line.strip():
            yield _entry(_decoded(line, f"{file}:{number}"), f"{file}:{number}")


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError("cannot read the training text", given=f"{file}: {error.strerror}") from error


def _decoded(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError("training text must be UTF-8", given=f"{source}, byte {error.start + 1}") from error


def _entry(line: str, source: str) -> Document:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError("a line of the training data is not JSON", given=f"{source}: {error}", fix="mend it") from error
    if not isinstance(entry, dict):
        raise _wrong(source, "the line is no JSON object")
    if "messages" in entry:
        return _conversation(entry["messages"], entry.get("tools"), source)
    if "prompt" in entry:
        roles = {"prompt": "user", "completion": "assistant"}
        messages = [{"role": role, "content": entry[key]} for key, role in roles.items() if key in entry]
        return _conversation(messages, entry.get("tools"), source)
    if not isinstance(entry.get("text"), str):
        raise _wrong(source, f"its keys are {', '.join(sorted(map(repr, entry))) or 'none'}")
    return Document(source, entry["text"])


def _conversation(messages: Any, tools: Any, source: str) -> Document:
    if not isinstance(messages, list) or not messages:
        raise _wrong(source, "messages must be a list with at least one")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _wrong(source, "each message needs a role and a content")
        if not isinstance(message.get("content"), str):
            raise _wrong(source, f"the content of the {message['role']} message must be text")
    return Document(source, messages=tuple(messages), tools=tools)


def _wrong(source: str, problem: str) -> UserError:
    return UserError(f"a line of the training data must be {_FORMATS}", given=f"{source}: {problem}", fix="mend it")
