"""A conversation: its messages, and a cache that lets each turn process only what is new."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mtp_cli.interrupt import Interrupt, StoppedError
from mtp_cli.pair import Pair
from mtp_weights.errors import UserError

if TYPE_CHECKING:
    from mtp_mlx import GenerationResponse
    from mtp_mlx.reply import Piece


@dataclass
class Turn:
    """What a turn did.

    Attributes:
        kept: prompt tokens that the cache already held.
        last: the last response; None where the reply did not begin.
        stopped: whether Ctrl-C ended it.
    """

    kept: int
    last: "GenerationResponse | None" = None
    stopped: bool = False


class Conversation:
    """Messages so far, in OpenAI's form, and the cache that goes with them.

    Args:
        pair: the models.
        system_prompt: what the model is told first, or None.
        settings: further arguments of `stream_generate`.
    """

    def __init__(self, pair: Pair, system_prompt: str | None, settings: dict[str, Any]):
        from mtp_mlx.prompt_cache import PromptCache

        if not pair.tokenizer.has_chat_template:
            raise UserError("a chat needs a model with a chat template", fix="use an instruction-tuned one (…-it)")
        self.pair, self.settings = pair, settings
        self._system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        self.cache = PromptCache(pair.model)
        self.messages = list(self._system)

    def clear(self) -> None:
        """Begins anew, with the same system prompt."""
        self.messages = list(self._system)
        self.cache.clear()

    def turn(self, text: str, interrupt: Interrupt, show: "Callable[[Piece], None]") -> Turn:
        """Adds the user's message and the model's reply, which goes to `show` as it comes.

        A reply that Ctrl-C stopped stays in the conversation as far as it got; with no reply at all, the message does
        not stay either.

        Raises:
            UserError: the conversation does not fit the model; nothing has changed.
        """
        from mtp_mlx.chat_template import render

        messages = [*self.messages, {"role": "user", "content": text}]
        ids = render(self.pair.tokenizer, messages)
        new = self.cache.begin(ids)
        turn, pieces = Turn(kept=len(ids) - len(new)), []

        def keep_and_show(piece: "Piece") -> None:
            pieces.append(piece)
            show(piece)

        try:
            self._generate(new, turn, interrupt, keep_and_show)
        except StoppedError:
            turn.stopped = True
        except KeyboardInterrupt:
            turn.stopped = True
            self.cache.clear()  # it may have been interrupted in the middle of a write
        if turn.last is not None:
            reply = "".join(piece.text for piece in pieces if not piece.is_thought)
            self.messages = [*messages, {"role": "assistant", "content": reply}]
        return turn

    def _generate(self, prompt: list[int], turn: Turn, interrupt: Interrupt, show: "Callable[[Piece], None]") -> None:
        from mtp_mlx import stream_generate
        from mtp_mlx.reply import ReplyParser

        parser = ReplyParser(self.pair.tokenizer)
        responses = stream_generate(
            self.pair.model,
            self.pair.tokenizer,
            prompt,
            prompt_cache=self.cache.cache,
            prompt_progress_callback=interrupt.check,
            **self.settings,
            **self.pair.draft_options,
        )
        try:
            for response in responses:
                turn.last = response
                self.cache.record(response.token)
                for piece in parser.feed(response.token):
                    show(piece)
                interrupt.check()
        finally:
            responses.close()
            for piece in parser.finish():
                show(piece)
