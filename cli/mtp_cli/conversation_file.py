"""Conversations as files: JSON with OpenAI's messages, and beside it, where asked for, the cache of keys and values."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtp_cli.conversation import Conversation
from mtp_weights.atomic_file import write_atomically
from mtp_weights.errors import UserError

if TYPE_CHECKING:
    from mtp_mlx.chat_template import Message

ROLES = ("system", "user", "assistant")


def save(conversation: Conversation, file: Path, with_cache: bool) -> None:
    """Writes the messages to `file`, and the cache to `cache_file(file)`.

    Raises:
        UserError: it cannot be written, or `file` is something else than a conversation.
    """
    from mtp_mlx.prompt_cache_file import save_prompt_cache

    if file.exists():
        _read(file)  # never write over what is no conversation
    content = {"model": conversation.pair.options.model, "messages": conversation.all_messages}
    text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    try:
        write_atomically(file, lambda opened: opened.write(text.encode()))
    except OSError as error:
        raise UserError("cannot write", given=f"{file}: {error.strerror}", fix="choose another file") from error
    if with_cache:
        save_prompt_cache(cache_file(file), conversation.cache)


def load(conversation: Conversation, file: Path) -> str | None:
    """Puts the messages in `file` in the place of the conversation's, and its cache, where one lies beside it.

    Returns:
        Why the cache was not used, where there is one that cannot be.

    Raises:
        UserError: it cannot be read, or is no conversation; then nothing has changed.
    """
    from mtp_mlx.prompt_cache import PromptCache
    from mtp_mlx.prompt_cache_file import load_prompt_cache

    messages = _read(file)
    cache, problem = PromptCache(conversation.pair.model), None
    try:
        if cache_file(file).exists():
            cache = load_prompt_cache(cache_file(file), conversation.pair.model)
    except UserError as error:
        problem = str(error)
    has_system = bool(messages) and messages[0]["role"] == "system"
    conversation.system_prompt = messages[0]["content"] if has_system else None
    conversation.messages, conversation.cache = messages[has_system:], cache
    return problem


def cache_file(file: Path) -> Path:
    """Where the cache of the conversation in `file` lies."""
    return file.with_suffix(".safetensors")


def _read(file: Path) -> "list[Message]":
    from mtp_mlx.chat_template import check_is_text

    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError("cannot read", given=f"{file}: {error.strerror}", fix="check the path") from error
    except ValueError as error:  # not UTF-8, not JSON
        raise UserError("not a conversation", given=f"{file}: {error}", fix="choose another file") from error
    messages = content.get("messages") if isinstance(content, dict) else content
    if not isinstance(messages, list) or not all(map(_is_message, messages)):
        raise UserError(
            "not a conversation: a list of messages with a role and a content is needed",
            given=file,
            fix="choose another file",
        )
    for message in messages:
        check_is_text(message["content"])
    return [{"role": message["role"], "content": _text(message["content"])} for message in messages]


def _text(content: "str | list[dict[str, str]]") -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        return False
    content = message.get("content")
    return isinstance(content, str) or (isinstance(content, list) and all(map(_is_part, content)))


def _is_part(part: Any) -> bool:
    """Whether it is a part of a content; what is no text is refused later, by name."""
    return isinstance(part, dict) and "type" in part and (part["type"] != "text" or isinstance(part.get("text"), str))
