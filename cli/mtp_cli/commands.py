"""What can be typed in a chat besides messages. Help and completion come from the table."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mtp_cli import conversation_file
from mtp_cli.console import note
from mtp_cli.options import check_max_tokens, parse_num_draft_tokens, whole_number
from mtp_cli.sampling import GREEDY
from mtp_weights.errors import MisuseError, UserError

if TYPE_CHECKING:
    from mtp_cli.session import Session


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        name: with its stroke.
        takes: what may follow it, for the help.
        help: what it does, in a few words.
        run: does it; gets the session and what follows the name.
        also: other names; those without a stroke are mlx-lm's and stand alone in a line.
        words: what may follow it, for completion.
        takes_file: whether a file's name follows.
    """

    name: str
    takes: str
    help: str
    run: "Callable[[Session, str], None]"
    also: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    takes_file: bool = False


def find(line: str) -> tuple[Command, str] | None:
    """The command in a line and what follows its name, or None where the line is a message.

    Raises:
        UserError: it looks like a command, and there is none of that name.
    """
    name, _, rest = line.rstrip().partition(" ")
    command = _BY_NAME.get(name)
    if command is not None and (name.startswith("/") or not rest):
        return command, rest.strip()
    if re.fullmatch(r"/\w*", name):
        raise UserError("no such command", given=name, fix="/help lists them")
    return None


def help_text() -> str:
    """The table, for people."""
    usages = [(f"{command.name} {command.takes}".rstrip(), command) for command in COMMANDS]
    width = max(len(usage) for usage, _ in usages)
    lines = []
    for usage, command in usages:
        also = f" ({', '.join(command.also)})" if command.also else ""
        lines.append(f"{usage:{width}}  {command.help}{also}")
    return "\n".join([*lines, "", *KEYS])


KEYS = (
    'Alt-Enter begins a new line, as Enter does after """ until the next """.',
    "Ctrl-C stops a reply and keeps what was said; Ctrl-D leaves.",
    "A line that begins with a blank is always a message.",
)


def _help(session: "Session", rest: str) -> None:
    note(help_text())


def _exit(session: "Session", rest: str) -> None:
    session.ended = True


def _clear(session: "Session", rest: str) -> None:
    session.conversation.clear()
    note("the conversation begins anew")


def _system(session: "Session", rest: str) -> None:
    conversation = session.conversation
    if rest:
        conversation.system_prompt = None if rest == "off" else rest
    note(f"system prompt: {conversation.system_prompt or 'none'}")


PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
SETTINGS = ("temp", "top_p", "top_k", "min_p", "seed", *PENALTIES, "max_tokens")


def _set(session: "Session", rest: str) -> None:
    conversation = session.conversation
    name, _, value = rest.partition(" ")
    if name and (name not in SETTINGS or not value.strip()):
        raise MisuseError("/set takes a name and a value", given=rest, fix=f"names are {', '.join(SETTINGS)}")
    if name == "max_tokens":
        conversation.change(max_tokens=check_max_tokens(whole_number(name, value)))
    elif name:
        conversation.change(sampling=conversation.settings.sampling.with_text(name, value))
    note(_settings(session))


def _settings(session: "Session") -> str:
    settings = session.conversation.settings
    values = {**vars(settings.sampling), "max_tokens": settings.max_tokens}
    return " · ".join(f"{name} {values[name]}" for name in SETTINGS if values[name] is not None)


def _stats(session: "Session", rest: str) -> None:
    if rest == "plain":
        session.measure_plain()
    elif rest:
        raise MisuseError("/stats takes nothing, or 'plain'", given=rest)
    note("\n".join(session.statistics_lines()))


def _regenerate(session: "Session", rest: str) -> None:
    if session.conversation.settings.sampling.describe() == GREEDY:
        note("at temperature 0 the reply stays the same; /set temp 0.7 varies it")
    session.answer(session.conversation.regenerate)


def _undo(session: "Session", rest: str) -> None:
    note(f"taken back: {_shortened(session.conversation.undo())}")


def _shortened(text: str, most: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _save(session: "Session", rest: str) -> None:
    name = rest.removesuffix("--cache").strip()
    with_cache = name != rest
    file = _file("/save", name)
    conversation_file.save(session.conversation, file, with_cache)
    count = len(session.conversation.messages)
    note(
        f"{count} messages in {file}" + (f", their cache in {conversation_file.cache_file(file)}" if with_cache else "")
    )


def _load(session: "Session", rest: str) -> None:
    file = _file("/load", rest)
    problem = conversation_file.load(session.conversation, file)
    if problem is not None:
        note(f"not used: {problem}")
    conversation = session.conversation
    note(f"{len(conversation.messages)} messages from {file}, {len(conversation.cache.ids)} tokens in the cache")


def _file(command: str, name: str) -> Path:
    if not name:
        raise MisuseError(f"{command} takes the name of a file", fix=f"{command} chat.json")
    return Path(name).expanduser()


def _think(session: "Session", rest: str) -> None:
    if rest not in ("", "on", "off"):
        raise MisuseError("/think takes 'on' or 'off'", given=rest)
    if rest:
        session.conversation.change(thinking=rest == "on")
    note(f"thinking: {'on' if session.conversation.settings.thinking else 'off'}")


def _draft(session: "Session", rest: str) -> None:
    conversation = session.conversation
    if rest:
        conversation.draft(0 if rest == "off" else parse_num_draft_tokens(rest, "/draft"))
    note(f"drafts a round: {session.drafts()}")


def _show(session: "Session", rest: str) -> None:
    session.show(rest)


COMMANDS = (
    Command("/help", "", "show this", _help, ("/?", "h")),
    Command("/exit", "", "leave", _exit, ("/quit", "/bye", "q")),
    Command("/clear", "", "forget the conversation and begin anew", _clear, ("r",)),
    Command("/system", "[TEXT|off]", "what the model is told first", _system, words=("off",)),
    Command("/set", "[NAME VALUE]", "change temp, top_p, max_tokens, …; show all", _set, words=SETTINGS),
    Command("/stats", "[plain]", "this session's figures; measure plain speed", _stats, words=("plain",)),
    Command("/regen", "", "reply to the last message again", _regenerate),
    Command("/undo", "", "take back the last message and its reply", _undo),
    Command("/save", "FILE [--cache]", "write the conversation, and its cache", _save, takes_file=True),
    Command("/load", "FILE", "go on with a saved conversation", _load, takes_file=True),
    Command("/think", "[on|off]", "let the model think before it answers", _think, words=("on", "off")),
    Command("/draft", "[auto|off|N]", "how many tokens to draft a round", _draft, words=("auto", "off")),
    Command("/show", "[WHAT]", "switch drafts, markdown or thoughts", _show, words=("drafts", "markdown", "thoughts")),
)
_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.also)}
