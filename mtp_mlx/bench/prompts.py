"""What to measure on: the package's suites, the demo pair's held-out text, a file, or prompts of a given length."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from mtp_mlx.chat_template import render
from mtp_mlx.errors import MisuseError, UserError
from mtp_mlx.generate import tokenize
from mtp_mlx.models.target import Target
from mtp_weights.locate import DEMO_TARGET, bundled_folder

LONG = "long"
SUITES = ("chat", "code", "prose", "structured", "notifications", "proofreading", "replies", "translation", LONG)
_LONG_QUESTIONS = (
    "Sort the numbers of the letters into groups by what is asked for, and give each group a title.",
    "Which letters ask for a translation? Give their numbers and the languages, one on each line.",
    "Summarize in three paragraphs what people ask this help desk for.",
    "Write a short answer to the first and to the last letter.",
)


@dataclass(frozen=True)
class BenchPrompt:
    """One prompt.

    Attributes:
        category: what it is summed up under.
        text: the user's message, or the text to continue.
        raw: whether to continue `text` as it is, without the chat template.
    """

    category: str
    text: str
    raw: bool = False

    def ids(self, tokenizer: TokenizerWrapper) -> list[int]:
        """Token ids; without a chat template, every prompt is raw."""
        if self.raw or not tokenizer.has_chat_template:
            return tokenize(tokenizer, self.text)
        return render(tokenizer, [{"role": "user", "content": self.text}])


def default_prompts(model: Target) -> list[BenchPrompt]:
    """The package's suites of short prompts; for the demo target, text it was not trained on: it knows little else."""
    demo = bundled_folder(DEMO_TARGET)
    if model.path == demo:
        return read_prompts(demo.parent / "heldout.jsonl")
    return suites([name for name in SUITES if name != LONG])


def suites(names: Sequence[str]) -> list[BenchPrompt]:
    """The prompts of the suites called `names`, each a category of its own.

    Raises:
        MisuseError: there is no such suite.
    """
    for name in names:
        if name not in SUITES:
            raise MisuseError("there is no such suite", given=name, fix=f"there are {', '.join(SUITES)}")
    return [prompt for name in names for prompt in (_long_prompts() if name == LONG else _suite(name))]


def _suite(name: str) -> list[BenchPrompt]:
    return read_prompts(Path(__file__).parent / "suites" / f"{name}.jsonl")


def _long_prompts() -> list[BenchPrompt]:
    """Questions about all prompts of the other suites, numbered and in turned order: some 3,000 tokens each."""
    notes = [prompt.text for name in SUITES if name != LONG for prompt in _suite(name)]
    prompts = []
    for n, question in enumerate(_LONG_QUESTIONS):
        turn = n * len(notes) // len(_LONG_QUESTIONS)
        letters = enumerate(notes[turn:] + notes[:turn], start=1)
        listed = "\n\n".join(f"{number}. {note}" for number, note in letters)
        prompts.append(BenchPrompt(LONG, f"These are letters to a help desk.\n\n{listed}\n\n{question}"))
    return prompts


def read_prompts(path: Path) -> list[BenchPrompt]:
    """Reads prompts from a file: lines of text, or, where its name ends in .jsonl, JSON objects.

    An object has `prompt`, and optionally `category` (or `domain`) and `kind`: "chat", which is the default, or "raw".

    Raises:
        UserError: the file cannot be read, or a line is not as described.
        MisuseError: it has no prompts.
    """
    try:
        lines = path.read_text("utf-8").split("\n")
    except OSError as error:
        raise UserError("cannot read the prompts", given=f"{path}: {error.strerror}", fix="check the path") from error
    except UnicodeDecodeError as error:
        raise UserError("prompts must be UTF-8 text", given=f"{path}, byte {error.start}") from error
    parse = _from_json if path.suffix == ".jsonl" else lambda line, _: BenchPrompt(path.stem, line)
    prompts = [parse(line, f"{path}, line {n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise MisuseError("the file has no prompts", given=path, fix="write one on each line")
    return prompts


def _from_json(line: str, where: str) -> BenchPrompt:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise UserError("each line must be a JSON object", given=f"{where}: {error}") from error
    if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str) or not entry["prompt"].strip():
        raise UserError("each line must be a JSON object with a 'prompt' text", given=where)
    kind = entry.get("kind", "chat")
    if kind not in ("chat", "raw"):
        raise UserError("the 'kind' of a prompt must be 'chat' or 'raw'", given=f"{where}: {kind!r}")
    return BenchPrompt(str(entry.get("category", entry.get("domain", "prompts"))), entry["prompt"], kind == "raw")


def select(prompts: Iterable[BenchPrompt], limit: int) -> list[BenchPrompt]:
    """At most `limit` prompts of each category, evenly from its beginning to its end."""
    by_category: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    return [prompt for group in by_category.values() for prompt in _evenly(group, limit)]


def _evenly(group: Sequence[BenchPrompt], limit: int) -> list[BenchPrompt]:
    count = min(limit, len(group))
    return [group[i * len(group) // count] for i in range(count)]


def of_length(prompts: Sequence[BenchPrompt], tokenizer: TokenizerWrapper, length: int, count: int) -> list[list[int]]:
    """Ids of `count` prompts of exactly `length` tokens each: BOS, and then stretches of all the prompts in a row.

    For speed as a function of length. The text of a stretch begins anywhere, and repeats where there is too little.
    """
    text = tokenize(tokenizer, "\n\n".join(prompt.text for prompt in prompts))
    bos, text = text[:1], text[1:]
    starts = [n * len(text) // count for n in range(count)]
    return [bos + [text[(start + i) % len(text)] for i in range(length - 1)] for start in starts]
