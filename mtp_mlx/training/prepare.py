"""From documents to the rows of a run: those to train on, and those to validate with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from mtp_mlx.errors import UserError
from mtp_mlx.models.target import Target
from mtp_mlx.training.continuations import continue_documents
from mtp_mlx.training.documents import Document, Documents
from mtp_mlx.training.rows import Rows, document_ids, hold_out, pack
from mtp_mlx.training.settings import GENERATE, Settings


@dataclass(frozen=True)
class Text:
    """The rows of a run.

    Attributes:
        train: those that come up in the run, each once.
        valid: those to validate with.
        held_out: whether `valid` was taken from the training data.
    """

    train: Rows
    valid: Rows
    held_out: bool


def prepare(
    documents: Documents,
    target: Target,
    tokenizer: TokenizerWrapper,
    settings: Settings,
    val_batches: int,
    folder: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Text:
    """Tokenizes documents and puts them into rows; with "generate", lets the target write what follows prompts.

    Args:
        folder: keeps what the target writes.
        val_batches: most batches of validation rows; -1 for all that there are.
        progress: called with (documents done, in all) while the target writes.

    Raises:
        UserError: there is not enough text, or a document cannot be rendered; names it.
    """
    train = _rows(documents.train, target, tokenizer, settings, folder, progress)
    most = len(train) if val_batches < 0 else val_batches * settings.batch_size
    if documents.valid:
        valid = _rows(documents.valid, target, tokenizer, settings, folder, progress)
        valid = valid.take(slice(0, most))
    else:
        train, valid = hold_out(train, most, settings.seed)
    used = np.random.default_rng(settings.seed).permutation(len(train))[: settings.iters * settings.batch_size]
    return Text(train.take(np.sort(used)), valid, not documents.valid)


def _rows(
    documents: Sequence[Document],
    target: Target,
    tokenizer: TokenizerWrapper,
    settings: Settings,
    folder: Path,
    progress: Callable[[int, int], None],
) -> Rows:
    length = settings.max_seq_length
    if settings.self_distill == GENERATE:
        ids = continue_documents(documents, target, tokenizer, settings, folder, progress)
    else:
        _check_replies(documents)
        ids = [document_ids(document, tokenizer) for document in documents]
    long_enough = [each for each in ids if len(each) >= settings.num_draft_tokens + 2]
    if not long_enough:
        raise UserError(
            "no text in the training data is long enough",
            given=f"{len(ids)} documents, the longest of {max(map(len, ids))} tokens",
            fix=f"at least {settings.num_draft_tokens + 2} tokens are needed",
        )
    return pack(long_enough, length, tokenizer.bos_token_id)


def _check_replies(documents: Sequence[Document]) -> None:
    prompt = next((document for document in documents if document.is_prompt), None)
    if prompt is not None:
        raise UserError(
            "the training data has a prompt without a reply",
            given=prompt.source,
            fix="add the reply, or let the target write it: --self-distill generate",
        )
