"""Picks held-out prompts for the acceptance evaluation and the bench: raw prefixes and chat requests.

Output, JSON lines: {"domain", "kind", "prompt", "text"}. `kind` is "raw" (the prompt is text to continue,
after BOS) or "chat" (the prompt is a user's message for the chat template). `text` is what really follows.
"""

import argparse
import json
import random
from pathlib import Path

DOMAINS = ("bible", "novels", "code", "chat")


def held_out_documents(path: Path, domain: str) -> list[dict]:
    with path.open(encoding="utf-8") as file:
        documents = [json.loads(line) for line in file]
    return [d for d in documents if d["domain"] == domain and d["split"] == "heldout"]


def raw_prompts(documents: list[dict], count: int, rng: random.Random) -> list[dict]:
    """Prefixes of up to 400 characters from random places, cut at a line or a word, and what follows."""
    texts = [d["text"] for d in documents if "text" in d and len(d["text"]) > 2000]
    result = []
    for index in range(count if texts else 0):
        text = texts[index % len(texts)]
        start = rng.randrange(len(text) - 1500)
        border = "\n" if "\n" in text[start : start + 500] else " "
        start = text.index(border, start) + 1
        end = text.index(" ", start + rng.randint(200, 400))
        start += len(text[start:end]) - len(text[start:end].lstrip("\n"))
        entry = {"domain": documents[0]["domain"], "kind": "raw"}
        result.append(entry | {"prompt": text[start:end], "text": text[end : end + 600]})
    return [entry for entry in result if len(entry["text"]) > 200]


def chat_prompts(documents: list[dict], count: int, rng: random.Random) -> list[dict]:
    """First questions of held-out dialogues with their answers, each question once."""
    by_prompt = {}
    for document in documents:
        messages = document.get("messages")
        if messages and len(messages[0]["content"]) <= 800:
            by_prompt.setdefault(messages[0]["content"], messages[1]["content"])
    prompts = rng.sample(sorted(by_prompt), min(count, len(by_prompt)))
    domain = documents[0]["domain"]
    return [{"domain": domain, "kind": "chat", "prompt": p, "text": by_prompt[p][:600]} for p in prompts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=Path, required=True, help="documents.jsonl from corpus.py")
    parser.add_argument("--output", type=Path, required=True, help="heldout.jsonl to write")
    parser.add_argument("--raw", type=int, default=24, help="raw prefixes a domain that has raw text")
    parser.add_argument("--chat", type=int, default=24, help="requests a domain, half more for `chat`")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rng = random.Random(args.seed)
    entries = []
    for domain in DOMAINS:
        documents = held_out_documents(args.documents, domain)
        entries += raw_prompts(documents, args.raw, rng)
        entries += chat_prompts(documents, args.chat if domain != "chat" else args.chat * 3 // 2, rng)
    lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries]
    args.output.write_text("".join(lines), encoding="utf-8")
    print(f"{len(entries)} prompts -> {args.output}")


if __name__ == "__main__":
    main()
