"""Builds the documents on which the demo target is trained: freely licensed text, raw and as chat.

Four domains: `bible` (King James Version, public domain), `novels` (Jane Austen, public domain), `code` (the
Python standard library, PSF licence) and `chat` (chatterbot-corpus, BSD, and small exercises generated here).
Whole documents (a chapter, a module, a question) are held out; nothing derived from them is trained on.

Output, JSON lines: {"domain", "split"} with "text" for raw text or "messages" for a dialogue.
"""

import argparse
import json
import random
from pathlib import Path

import sources
import tasks

HELD_OUT_EVERY = 25


def split_of(index: int) -> str:
    """Every 25th document of a domain is held out."""
    return "heldout" if index % HELD_OUT_EVERY == HELD_OUT_EVERY // 2 else "train"


def prose_documents(domain: str, chapters: list[sources.Chapter], rng: random.Random) -> list[dict]:
    """Each chapter once as raw text and once as passages to continue."""
    documents = []
    for index, chapter in enumerate(chapters):
        split = split_of(index)
        documents.append({"domain": domain, "split": split, "text": chapter.text})
        for messages in tasks.passage_dialogues(chapter, rng):
            documents.append({"domain": domain, "split": split, "messages": messages})
    return documents


def code_documents(modules: list[tuple[str, str]], rng: random.Random) -> list[dict]:
    """Each module once as raw text, its documented functions as requests to write or to complete them."""
    documents = []
    for index, (name, source) in enumerate(modules):
        split = split_of(index)
        documents.append({"domain": "code", "split": split, "text": source})
        for messages in tasks.function_dialogues(name, source, rng):
            documents.append({"domain": "code", "split": split, "messages": messages})
    return documents


def chat_documents(dialogues: list[list[str]], repeats: int, rng: random.Random) -> list[dict]:
    """Dialogues, repeated and chained into conversations; equal first lines stay on one side of the split."""
    by_question: dict[str, list[list[str]]] = {}
    for turns in dialogues:
        by_question.setdefault(turns[0].strip().lower(), []).append(turns)
    sides: dict[str, list[list[str]]] = {"train": [], "heldout": []}
    for index, question in enumerate(sorted(by_question)):
        sides[split_of(index)].extend(by_question[question])
    documents = []
    for split, group in sides.items():
        for _ in range(repeats if split == "train" else 1):
            for messages in tasks.conversations(group, rng, chained=split == "train"):
                documents.append({"domain": "chat", "split": split, "messages": messages})
    return documents


def build(args: argparse.Namespace) -> list[dict]:
    rng = random.Random(args.seed)
    bible = sources.bible_chapters(args.bible)
    documents = prose_documents("bible", bible, rng)
    documents += prose_documents("novels", sources.austen_chapters(args.austen), rng)
    documents += code_documents(sources.python_modules(args.python), rng)
    dialogues = sources.chatterbot_dialogues(args.chatterbot)
    documents += chat_documents(dialogues, args.dialogue_repeats, rng)
    documents += chat_documents(tasks.exercises(rng, args.exercises), 1, rng)
    return documents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bible", type=Path, required=True, help="output of `bible -f gen1:1-rev22:21`")
    parser.add_argument("--austen", type=Path, required=True, help="Rdata.rdb of the R package janeaustenr")
    parser.add_argument("--python", type=Path, required=True, help="folder of the Python standard library")
    parser.add_argument("--chatterbot", type=Path, required=True, help="folder of chatterbot-corpus's English YAML")
    parser.add_argument("--output", type=Path, required=True, help="documents to write (.jsonl)")
    parser.add_argument("--dialogue-repeats", type=int, default=4, help="how often each dialogue appears")
    parser.add_argument("--exercises", type=int, default=3000, help="number of generated exercises")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    documents = build(args)
    with args.output.open("w", encoding="utf-8") as file:
        for document in documents:
            file.write(json.dumps(document, ensure_ascii=False) + "\n")
    print(f"{len(documents)} documents -> {args.output}")


if __name__ == "__main__":
    main()
