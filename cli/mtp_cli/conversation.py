"""A conversation: its messages, and a cache that lets each turn process only what is new."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mtp_cli.interrupt import Interrupt, StoppedError
from mtp_cli.pair import Pair
from mtp_cli.sampling import SamplingOptions
from mtp_weights.errors import MisuseError, UserError

if TYPE_CHECKING:
    from mtp_mlx import GenerationResponse
    from mtp_mlx.chat_template import Message
    from mtp_mlx.reply import Piece

    Show = Callable[[Piece, GenerationResponse], None]

Progress = Callable[[int, int], None]


@dataclass
class Turn:
    """What a turn did.

    Attributes:
        new: prompt tokens that had to be processed.
        kept: prompt tokens that the cache already held.
        drafting: whether there was something to draft with.
        last: the last response; None where the reply did not begin.
        stopped: whether Ctrl-C ended it.
        thoughts: what the model thought before it answered.
    """

    new: int
    kept: int
    drafting: bool
    last: "GenerationResponse | None" = None
    stopped: bool = False
    thoughts: str = ""


@dataclass
class ChatSettings:
    """What can be changed between two turns."""

    max_tokens: int
    prefill_step_size: int = 512
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    thinking: bool = False


class Conversation:
    """Messages so far, in OpenAI's form, and the cache that goes with them.

    Args:
        pair: the models.
        system_prompt: what the model is told first, or None.
        settings: how to reply.

    Attributes:
        messages: without the system prompt.
    """

    def __init__(self, pair: Pair, system_prompt: str | None, settings: ChatSettings):
        from mtp_mlx.prompt_cache import PromptCache

        if not pair.tokenizer.has_chat_template:
            raise UserError("a chat needs a model with a chat template", fix="use an instruction-tuned one (…-it)")
        self.pair, self.settings, self.system_prompt = pair, settings, system_prompt
        self.cache = PromptCache(pair.model)
        self.messages: list[Message] = []
        self._apply(settings)

    @property
    def all_messages(self) -> "list[Message]":
        """The messages with the system prompt before them."""
        system = [] if self.system_prompt is None else [{"role": "system", "content": self.system_prompt}]
        return system + self.messages

    def change(self, **settings: Any) -> None:
        """Changes some of the settings; all of them, or none where a value is impossible."""
        self._apply(replace(self.settings, **settings))

    def draft(self, num_tokens: int | str) -> None:
        """Drafts so many tokens a round from now on; 0 decodes plainly."""
        if self.pair.drafter is None:
            raise UserError("no drafter is loaded", fix="begin the chat without --no-draft")
        self.pair = self.pair.drafting(num_tokens)

    def clear(self) -> None:
        """Begins anew, with the same system prompt."""
        self.messages = []
        self.cache.clear()

    def undo(self) -> str:
        """Takes back the last message and what came after it; gives that message."""
        last = self._last_message()
        self.messages, taken = self.messages[:last], self.messages[last]
        return taken["content"]

    def turn(self, text: str, interrupt: Interrupt, show: "Show", progress: Progress | None = None) -> Turn:
        """Adds the user's message and the model's reply, which goes to `show` as it comes.

        A reply that Ctrl-C stopped stays in the conversation as far as it got; with no reply at all, the message does
        not stay either.

        Args:
            progress: called with (tokens processed, tokens in all) while a long prompt is processed.

        Raises:
            UserError: the conversation does not fit the model; nothing has changed.
        """
        return self._reply([*self.messages, {"role": "user", "content": text}], interrupt, show, progress)

    def regenerate(self, interrupt: Interrupt, show: "Show", progress: Progress | None = None) -> Turn:
        """Replies to the last message again. The old reply stays where no new one began."""
        return self._reply(self.messages[: self._last_message() + 1], interrupt, show, progress)

    def _last_message(self) -> int:
        roles = [message["role"] for message in self.messages]
        if "user" not in roles:
            raise UserError("there is no message yet")
        return len(roles) - 1 - roles[::-1].index("user")

    def _apply(self, settings: ChatSettings) -> None:
        self._sampler, self._processors = settings.sampling.sampler(), settings.sampling.processors()
        self.settings = settings

    def _reply(self, messages: "list[Message]", interrupt: Interrupt, show: "Show", progress: Progress | None) -> Turn:
        system = self.all_messages[: len(self.all_messages) - len(self.messages)]
        ids, shared = self._render([*system, *messages])
        held = len(ids) - len(self.cache.begin(ids))
        turn, parts = Turn(len(ids) - held, held, self.pair.drafts), {False: [], True: []}

        def keep_and_show(piece: "Piece") -> None:
            parts[piece.is_thought].append(piece.text)
            show(piece, turn.last)

        def check(done: int, total: int) -> None:
            interrupt.check()
            if progress is not None:
                progress(done, total)

        try:
            new = self.cache.process(shared, self.settings.prefill_step_size, check)
            self._generate(new, turn, interrupt, keep_and_show, check)
        except StoppedError:
            turn.stopped = True
        except KeyboardInterrupt:
            turn.stopped = True
            self.cache.clear()  # it may have been interrupted in the middle of a write
        except RuntimeError as error:  # MLX's own: no memory left, a kernel that cannot be loaded
            self.cache.clear()
            fix = "send it again, or begin anew with /clear; the conversation is as it was"
            raise UserError("MLX could not go on with the reply", given=error, fix=fix) from error
        if turn.last is not None:
            self.messages = [*messages, {"role": "assistant", "content": "".join(parts[False])}]
            turn.thoughts = "".join(parts[True])
        return turn

    def _render(self, messages: "list[Message]") -> tuple[list[int], int]:
        """The ids of a conversation, and how many of them later turns will share. Refuses one that does not fit."""
        from mtp_mlx.chat_template import render, shared_prefix

        thinking, context = self.settings.thinking, self.pair.model.config.max_position_embeddings
        ids = render(self.pair.tokenizer, messages, thinking=thinking)
        if len(ids) >= context:
            raise MisuseError(
                f"the conversation must be shorter than the model's context of {context} tokens",
                given=f"{len(ids)} tokens",
                fix="write less, take back a message with /undo, or begin anew with /clear",
            )
        return ids, shared_prefix(self.pair.tokenizer, messages, thinking=thinking)

    def _generate(
        self, prompt: list[int], turn: Turn, interrupt: Interrupt, show: "Callable[[Piece], None]", progress: Progress
    ) -> None:
        from mtp_mlx import stream_generate
        from mtp_mlx.reply import ReplyParser

        parser = ReplyParser(self.pair.tokenizer)
        responses = stream_generate(
            self.pair.model,
            self.pair.tokenizer,
            prompt,
            max_tokens=self.settings.max_tokens,
            prompt_cache=self.cache.cache,
            prefill_step_size=self.settings.prefill_step_size,
            prompt_progress_callback=progress,
            sampler=self._sampler,
            logits_processors=self.cache.processors(self._processors),
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
