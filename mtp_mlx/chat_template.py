"""From a conversation to token ids, through the tokenizer's chat template."""

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError
from mlx_lm.tokenizer_utils import TokenizerWrapper

from mtp_mlx.errors import MisuseError, UserError
from mtp_mlx.generate import tokenize
from mtp_mlx.prompt_cache import common_prefix

Message = dict[str, Any]


def render(
    tokenizer: TokenizerWrapper,
    messages: Sequence[Message],
    *,
    thinking: bool = False,
    reply: str | None = None,
    **variables: Any,
) -> list[int]:
    """Token ids of a conversation, up to where the model's reply begins.

    Args:
        messages: OpenAI's form: a `role` and a `content`, which is text or a list of parts with `type` "text".
        thinking: whether the template asks the model to think first.
        reply: the beginning of the reply, which the model shall go on with.
        variables: further ones for the template.

    Raises:
        UserError: the tokenizer has no chat template, or the template refuses the conversation.
        MisuseError: a message holds something else than text.
    """
    begun = [] if reply is None else [{"role": "assistant", "content": reply}]
    ending = {"add_generation_prompt": not begun, "continue_final_message": bool(begun)}
    # Thinking is said explicitly, because mlx-lm's wrapper would turn it on.
    return _render(tokenizer, [*messages, *begun], **{**ending, "enable_thinking": thinking, **variables})


def render_whole(tokenizer: TokenizerWrapper, messages: Sequence[Message], **variables: Any) -> list[int]:
    """Token ids of a conversation that is over, with what ends its last message; arguments and errors of `render`."""
    return _render(tokenizer, messages, **{"add_generation_prompt": False, "enable_thinking": False, **variables})


def _render(tokenizer: TokenizerWrapper, messages: Sequence[Message], **variables: Any) -> list[int]:
    if not tokenizer.has_chat_template:
        raise UserError("the model has no chat template", fix="give it raw text")
    for message in messages:
        check_is_text(message["content"])
    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, **variables)
    except (TemplateError, TypeError, ValueError) as error:  # the last two: variables, a reply that it drops
        raise UserError("the chat template refuses the conversation", given=error) from error
    return tokenize(tokenizer, text)


def shared_prefix(tokenizer: TokenizerWrapper, messages: Sequence[Message], *, thinking: bool = False) -> int:
    """How many ids of the rendered conversation later turns will begin with too.

    It ends before whatever the template adds only where a reply is asked for, such as an empty thought channel.
    """
    later = [*messages, {"role": "assistant", "content": "x"}, {"role": "user", "content": "x"}]
    now, then = (render(tokenizer, conversation, thinking=thinking) for conversation in (messages, later))
    return common_prefix(now, then)


def check_is_text(content: str | list[dict[str, Any]]) -> None:
    """Refuses the content of a message that is more than text, which the template would silently drop."""
    parts = [] if isinstance(content, str) else content
    other = next((part["type"] for part in parts if part["type"] != "text"), None)
    if other is not None:
        raise MisuseError("messages must be text: images and audio are not supported", given=other)
