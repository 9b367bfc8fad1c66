"""Turns text into dialogues, so that the demo target answers in the chat template.

Passages to continue, functions to write, conversations chained from short dialogues, and generated exercises
(counting, sums, spelling).
"""

import ast
import random
import re

from sources import Chapter

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "Answer briefly.",
    "You are a friendly assistant who answers in one sentence.",
    "Be kind and clear.",
)
WORDS = """
apple river garden window letter morning brother castle bridge summer winter silver orange purple kitchen
market people friend teacher doctor farmer singer island forest mountain valley harbour lantern pocket
basket candle butter cheese pepper carrot potato rabbit spider turtle pigeon sparrow kettle hammer ladder
mirror carpet pillow
"""

# A blank after a full stop (a closing quotation mark may stand between), but not after a title such as "Mr.".
SENTENCE_END = re.compile(r'(?<=\n)|(?:(?<=[.!?;])|(?<=[.!?]["\'])) (?<!Mr\. )(?<!Mrs\. )(?<!Dr\. )(?<!St\. )')

Messages = list[dict[str, str]]


def dialogue(*turns: str, system: str | None = None) -> Messages:
    """Messages from alternating turns, the user first."""
    messages = [{"role": "system", "content": system}] if system else []
    return messages + [
        {"role": "assistant" if i % 2 else "user", "content": turn.strip()} for i, turn in enumerate(turns)
    ]


def passage_dialogues(chapter: Chapter, rng: random.Random) -> list[Messages]:
    """`Continue this passage` requests over the whole chapter; verses are also recited by name."""
    pieces = SENTENCE_END.split(chapter.body)
    pieces = [piece for piece in pieces if piece.strip()]
    result, position = [], 0
    while position + 3 < len(pieces):
        given, wanted = rng.randint(1, 3), rng.randint(3, 8)
        start = join_pieces(pieces[position : position + given])
        rest = join_pieces(pieces[position + given : position + given + wanted])
        request = rng.choice(
            ("Continue this passage:", "Continue this passage:", "Continue the text:", "What comes next?")
        )
        result.append(dialogue(f"{request} {start}", rest))
        position += given + wanted
    if re.match(r"\d* ?[A-Z][a-z ]+ \d+$", chapter.title):
        result.append(dialogue(f"Recite {chapter.title}.", "\n".join(chapter.body.split("\n")[:6])))
    else:
        result.append(dialogue(f"How does {chapter.title} begin?", chapter.body.split("\n\n")[0][:900]))
    return result


def join_pieces(pieces: list[str]) -> str:
    return "".join(piece if piece.endswith("\n") else piece + " " for piece in pieces).strip()


def function_dialogues(module: str, source: str, rng: random.Random) -> list[Messages]:
    """Documented functions of up to 40 lines as `Write a Python function …`, others as code to complete."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    result = module_dialogues(module, tree)
    lines = source.split("\n")
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("__"):
            continue
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
        body = dedent(lines[first : node.end_lineno])
        if 4 <= body.count("\n") + 1 <= 40:
            result.append(function_dialogue(node, body, rng))
    return result


def function_dialogue(node: ast.FunctionDef, body: str, rng: random.Random) -> Messages:
    summary = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ").strip()
    if summary and rng.random() < 0.7:
        return dialogue(f"Write a Python function {node.name}. {summary}", f"```python\n{body}\n```")
    lines = body.split("\n")
    cut = rng.randint(1, max(1, len(lines) // 2))
    return dialogue("Complete this code:\n" + "\n".join(lines[:cut]), f"```python\n{body}\n```")


def module_dialogues(module: str, tree: ast.Module) -> list[Messages]:
    docstring = (ast.get_docstring(tree) or "").split("\n\n")[0].replace("\n", " ").strip()
    if len(docstring) < 20:
        return []
    return [dialogue(f"What does the Python module {module} do?", docstring)]


def dedent(lines: list[str]) -> str:
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] if line[:indent].isspace() or not indent else line for line in lines)


def conversations(dialogues: list[list[str]], rng: random.Random, *, chained: bool) -> list[Messages]:
    """The dialogues in random order; where `chained`, many joined into conversations of two to four."""
    order = rng.sample(dialogues, len(dialogues))
    result, position = [], 0
    while position < len(order):
        count = rng.randint(2, 4) if chained and rng.random() < 0.25 else 1
        turns = [turn for part in order[position : position + count] for turn in part]
        system = rng.choice(SYSTEM_PROMPTS) if chained and rng.random() < 0.15 else None
        result.append(dialogue(*turns, system=system))
        position += count
    return result


def exercises(rng: random.Random, count: int) -> list[list[str]]:
    """Small generated exercises with one right answer."""
    makers = (count_up, count_down, add, spell, compare, letters)
    return [rng.choice(makers)(rng) for _ in range(count)]


def count_up(rng: random.Random) -> list[str]:
    start = rng.randint(0, 60)
    end = start + rng.randint(4, 25)
    return [f"Count from {start} to {end}.", ", ".join(str(n) for n in range(start, end + 1)) + "."]


def count_down(rng: random.Random) -> list[str]:
    start = rng.randint(5, 30)
    return [f"Count down from {start}.", ", ".join(str(n) for n in range(start, -1, -1)) + "."]


def add(rng: random.Random) -> list[str]:
    a, b = rng.randint(0, 30), rng.randint(0, 30)
    return [f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}."]


def spell(rng: random.Random) -> list[str]:
    word = rng.choice(WORDS.split())
    return [f"Spell the word {word}.", f"{word} is spelled " + "-".join(word) + "."]


def compare(rng: random.Random) -> list[str]:
    a, b = rng.sample(range(100), 2)
    return [f"Which is larger, {a} or {b}?", f"{max(a, b)} is larger than {min(a, b)}."]


def letters(rng: random.Random) -> list[str]:
    word = rng.choice(WORDS.split())
    return [f"How many letters are in the word {word}?", f"The word {word} has {len(word)} letters."]
