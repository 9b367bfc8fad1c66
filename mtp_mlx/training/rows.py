"""Documents as rows of token ids, all of one length: long documents are cut, short ones share a row.

Those that share a row do not see each other: `segments` numbers them, and attention stays within a number.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from mtp_mlx.chat_template import Message, render, render_whole
from mtp_mlx.errors import UserError
from mtp_mlx.generate import tokenize
from mtp_mlx.training.documents import Document

OPEN_ROWS = 64  # rows that are looked through for a place, so that packing stays linear in the number of documents
HELD_OUT = 0.05  # of all rows, where there is no validation file


@dataclass(frozen=True)
class Rows:
    """N rows of L tokens.

    Attributes:
        tokens: ids [N, L], int32; 0 where a row is not full.
        segments: which document of the row a token belongs to, from 1 [N, L], int32; 0 where there is none.
    """

    tokens: np.ndarray
    segments: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, index: np.ndarray | slice) -> "Rows":
        return Rows(self.tokens[index], self.segments[index])

    @property
    def num_tokens(self) -> int:
        """How many tokens there are, without those that fill rows."""
        return int((self.segments > 0).sum())


def document_ids(document: Document, tokenizer: TokenizerWrapper) -> list[int]:
    """Token ids of a whole document: a text with the end-of-text id after it, or a conversation in its template.

    Raises:
        UserError: the template refuses the conversation; names its file and line.
    """
    if document.text is not None:
        return [*tokenize(tokenizer, document.text), tokenizer.eos_token_id]
    return _rendered(render_whole, tokenizer, document, document.messages)


def prompt_ids(document: Document, tokenizer: TokenizerWrapper, length: int) -> list[int]:
    """Token ids up to where the target is to go on: `length` ids of a text, or a conversation up to its last reply."""
    if document.text is not None:
        return tokenize(tokenizer, document.text)[:length]
    messages = document.messages if document.is_prompt else document.messages[:-1]
    return _rendered(render, tokenizer, document, messages or document.messages)


def _rendered(
    rendering: Callable[..., list[int]], tokenizer: TokenizerWrapper, document: Document, messages: Sequence[Message]
) -> list[int]:
    tools = {} if document.tools is None else {"tools": document.tools}
    try:
        return rendering(tokenizer, messages, **tools)
    except UserError as error:
        given = document.source if error.given is None else f"{document.source}: {error.given}"
        raise UserError(error.problem, given=given, fix=error.fix) from error


def pack(documents: Iterable[list[int]], length: int, bos: int | None) -> Rows:
    """Puts documents into rows.

    Args:
        documents: token ids. One that is too long is cut; where it began with `bos`, so does each part.
        length: tokens a row L.
    """
    parts = [part for ids in documents for part in _cut(ids, length, bos) if len(part) > 1]
    rows: list[list[list[int]]] = []
    room: list[int] = []
    for part in sorted(parts, key=len, reverse=True):
        first = max(0, len(rows) - OPEN_ROWS)
        row = next((r for r in range(first, len(rows)) if room[r] >= len(part)), None)
        if row is None:
            rows.append([])
            room.append(length)
            row = len(rows) - 1
        rows[row].append(part)
        room[row] -= len(part)
    tokens = np.zeros((len(rows), length), np.int32)
    segments = np.zeros_like(tokens)
    for r, members in enumerate(rows):
        filled = np.concatenate([np.asarray(part, np.int32) for part in members])
        tokens[r, : len(filled)] = filled
        segments[r, : len(filled)] = np.repeat(np.arange(1, len(members) + 1), [len(part) for part in members])
    return Rows(tokens, segments)


def _cut(ids: list[int], length: int, bos: int | None) -> list[list[int]]:
    if len(ids) <= length:
        return [ids]
    again = [bos] if bos is not None and ids[0] == bos else []
    step = length - len(again)
    return [ids[:length], *(again + ids[start : start + step] for start in range(length, len(ids), step))]


def hold_out(rows: Rows, most: int, seed: int) -> tuple[Rows, Rows]:
    """Divides rows into those to train on and a few, at most `most`, to validate with.

    Raises:
        UserError: there is one row only.
    """
    if len(rows) < 2:
        raise UserError(
            "the training data is too little to hold a part out for validation",
            given=f"{rows.num_tokens} tokens",
            fix="give more text, a validation file, or a smaller --max-seq-length",
        )
    count = min(most, max(1, round(len(rows) * HELD_OUT)))
    order = np.random.default_rng(seed).permutation(len(rows))
    return rows.take(np.sort(order[count:])), rows.take(np.sort(order[:count]))
