"""Documents to token rows: each document starts with BOS and ends with EOS; rows are cut from the stream."""

import json
import random
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

DOMAINS = ("bible", "novels", "code", "chat")
Documents = dict[tuple[str, str], list[np.ndarray]]  # (domain, split) -> token ids of each document


def encode_documents(documents: Path, tokenizer_folder: Path) -> Documents:
    """uint16 ids of each document by (domain, split); dialogues through the chat template."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    result: Documents = {}
    with documents.open(encoding="utf-8") as file:
        for line in file:
            document = json.loads(line)
            if "text" in document:
                ids = [*tokenizer.encode(document["text"]), tokenizer.eos_token_id]
            else:
                text = tokenizer.apply_chat_template(document["messages"], tokenize=False)
                ids = tokenizer.encode(text, add_special_tokens=False)
            key = (document["domain"], document["split"])
            result.setdefault(key, []).append(np.array(ids, np.uint16))
    return result


def cached_documents(documents: Path, tokenizer_folder: Path, cache: Path) -> Documents:
    """As `encode_documents`, kept in one .npz file between runs."""
    if not cache.exists():
        encoded = encode_documents(documents, tokenizer_folder)
        arrays = {}
        for (domain, split), items in encoded.items():
            arrays[f"{domain}.{split}.ids"] = np.concatenate(items)
            arrays[f"{domain}.{split}.ends"] = np.cumsum([len(item) for item in items])
        np.savez(cache, **arrays)
    stored = np.load(cache)
    names = {name.rsplit(".", 1)[0] for name in stored.files}
    return {tuple(name.split(".")): np.split(stored[f"{name}.ids"], stored[f"{name}.ends"][:-1]) for name in names}


class RowStream:
    """Endless rows of `length + 1` tokens; documents, then rows, are shuffled anew in each pass.

    Every rank draws the same order and takes its own rows, so that no text is seen twice in a pass.
    """

    def __init__(self, documents: list[np.ndarray], length: int, rank: int, world: int, seed: int):
        self.documents, self.length, self.rank, self.world = documents, length, rank, world
        self.seed, self.epoch = seed, -1
        self.rows = np.empty((0, length + 1), np.uint16)
        self.next_row = 0

    def _start_pass(self) -> None:
        self.epoch += 1
        order = list(range(len(self.documents)))
        random.Random(self.seed + self.epoch).shuffle(order)
        stream = np.concatenate([self.documents[i] for i in order])
        count = (len(stream) - 1) // self.length
        starts = np.arange(count)[:, None] * self.length
        rows = stream[starts + np.arange(self.length + 1)]
        # A long module fills many rows in succession: without this whole steps would see one document.
        np.random.default_rng(self.seed + self.epoch).shuffle(rows)
        self.rows = rows[self.rank :: self.world]
        self.next_row = 0

    def resume(self, epoch: int, next_row: int) -> None:
        """Goes on in pass `epoch` at row `next_row`."""
        self.epoch = epoch - 1
        self._start_pass()
        self.next_row = next_row

    def batch(self, size: int) -> np.ndarray:
        """The next `size` rows, int64 [size, length + 1]."""
        if self.next_row + size > len(self.rows):
            self._start_pass()
        rows = self.rows[self.next_row : self.next_row + size]
        self.next_row += size
        return rows.astype(np.int64)


def held_out_rows(documents: list[np.ndarray], length: int, limit: int) -> np.ndarray:
    """Up to `limit` rows of `length + 1` tokens from held-out documents in their order, int64."""
    stream = np.concatenate(documents)
    count = min(limit, (len(stream) - 1) // length)
    return stream[np.arange(count)[:, None] * length + np.arange(length + 1)].astype(np.int64)
