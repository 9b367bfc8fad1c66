"""The line editor of the chat: history, several lines, completion of commands. Built on prompt_toolkit."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_state_path
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from mtp_cli.line_reader import is_open

if TYPE_CHECKING:
    from mtp_cli.commands import Command


def line_editor(commands: "Sequence[Command]", prompt: str = ">>> ") -> PromptSession:
    """An editor with history. Enter sends; Alt-Enter, and Enter after an open triple quote, begin a new line."""
    return PromptSession(
        prompt,
        multiline=True,
        prompt_continuation="... ",
        history=_history(user_state_path("mtp") / "chat_history"),
        completer=_CommandCompleter(commands),
        key_bindings=_keys(),
        enable_open_in_editor=True,  # Ctrl-X Ctrl-E
    )


def _history(file: Path) -> History:
    """The history in `file`, which only its owner can read; in memory where the file cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


class _CommandCompleter(Completer):
    """Completes commands, and what they take: words, or files."""

    def __init__(self, commands: "Sequence[Command]"):
        self._commands = {command.name: command for command in commands}
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        typed = document.text_before_cursor
        if not typed.startswith("/") or "\n" in typed:
            return
        name, blank, rest = typed.partition(" ")
        if not blank:
            for command in self._commands.values():
                if command.name.startswith(name):
                    yield Completion(command.name, -len(name), display_meta=command.help)
        elif name in self._commands:
            yield from self._arguments(self._commands[name], rest, event)

    def _arguments(self, command: "Command", rest: str, event: CompleteEvent) -> Iterator[Completion]:
        if command.takes_file:
            yield from self._paths.get_completions(Document(rest), event)
        elif " " not in rest:
            yield from (Completion(word, -len(rest)) for word in command.words if word.startswith(rest))
