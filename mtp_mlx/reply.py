"""Tells a model's thoughts from its answer, by token ids, while a reply streams in."""

from typing import NamedTuple

from mlx_lm.tokenizer_utils import TokenizerWrapper

CHANNEL, END_OF_CHANNEL = "<|channel>", "<channel|>"  # Gemma 4's: <|channel>thought\n … <channel|>


class Piece(NamedTuple):
    """A piece of a reply's text."""

    text: str
    is_thought: bool


class ReplyParser:
    """Turns the ids of a reply into pieces of thought and of answer; their control tokens and stop ids are not shown.

    It works on ids, one at a time, so it does not matter how many of them a round emits.

    Args:
        tokenizer: of the model.
    """

    def __init__(self, tokenizer: TokenizerWrapper):
        vocabulary = tokenizer.get_vocab()
        self._open, self._close = vocabulary.get(CHANNEL), vocabulary.get(END_OF_CHANNEL)
        self._tokenizer = tokenizer
        self._begin(is_thought=False)

    def feed(self, token: int) -> list[Piece]:
        """Takes the next id; gives the text that is now certain, in order."""
        if token in self._tokenizer.eos_token_ids:
            return self.finish()
        if token == (self._close if self._is_thought else self._open):
            pieces = self.finish()
            self._begin(is_thought=not self._is_thought)
            return pieces
        self._detokenizer.add_token(token)
        return self._pieces()

    def finish(self) -> list[Piece]:
        """The text that was held back, at the end of the reply."""
        self._detokenizer.finalize()
        return self._pieces()

    def _begin(self, is_thought: bool) -> None:
        self._is_thought = self._in_channel_name = is_thought
        self._detokenizer = self._tokenizer.detokenizer

    def _pieces(self) -> list[Piece]:
        text = self._detokenizer.last_segment
        if self._in_channel_name:  # "thought", up to the end of the line
            _, line_break, text = text.partition("\n")
            self._in_channel_name = not line_break
        return [Piece(text, self._is_thought)] if text else []
