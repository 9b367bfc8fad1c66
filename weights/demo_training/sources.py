"""Readers for the free texts behind the demo target: each returns whole documents of clean text."""

import re
import zlib
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import yaml

# Canonical order: that of the Debian package's output.
BOOK_NAMES = """
Genesis, Exodus, Leviticus, Numbers, Deuteronomy, Joshua, Judges, Ruth, 1 Samuel, 2 Samuel, 1 Kings, 2
Kings, 1 Chronicles, 2 Chronicles, Ezra, Nehemiah, Esther, Job, Psalm, Proverbs, Ecclesiastes, Song of
Solomon, Isaiah, Jeremiah, Lamentations, Ezekiel, Daniel, Hosea, Joel, Amos, Obadiah, Jonah, Micah,
Nahum, Habakkuk, Zephaniah, Haggai, Zechariah, Malachi, Matthew, Mark, Luke, John, Acts, Romans, 1
Corinthians, 2 Corinthians, Galatians, Ephesians, Philippians, Colossians, 1 Thessalonians, 2
Thessalonians, 1 Timothy, 2 Timothy, Titus, Philemon, Hebrews, James, 1 Peter, 2 Peter, 1 John, 2 John, 3
John, Jude, Revelation
"""

# One question followed by several possible answers, not by alternating speakers.
ALTERNATIVE_ANSWERS = frozenset(
    ("ai", "botprofile", "computers", "emotion", "gossip", "humor", "literature", "psychology", "science")
)
# Test data and tables of code points teach nothing but digits.
SKIPPED_PYTHON = ("test", "tests", "encodings", "pydoc_data", "idlelib", "lib2to3", "site-packages")


@dataclass(frozen=True)
class Chapter:
    """One chapter: a title that a reader would name it by, and its text without that title."""

    title: str
    body: str

    @property
    def text(self) -> str:
        return f"{self.title}\n\n{self.body}"


def bible_chapters(path: Path) -> list[Chapter]:
    """Chapters from lines such as `Ge1:1 In the beginning …`; each verse becomes a numbered line."""
    lines = path.read_text("utf-8", "replace").splitlines()
    verses = [re.match(r"(\w+?)(\d+):(\d+) (.*)", line) for line in lines]
    names, chapters, books = " ".join(BOOK_NAMES.split()).split(", "), [], []
    for (book, number), group in groupby((v for v in verses if v), key=lambda v: (v[1], v[2])):
        if book not in books:
            books.append(book)
        body = "\n".join(f"{verse[3]} {verse[4].strip()}" for verse in group)
        chapters.append(Chapter(f"{names[len(books) - 1]} {number}", body))
    return chapters


def austen_chapters(path: Path) -> list[Chapter]:
    """Chapters of the six novels; the file is a row of zlib chunks, each an R character vector."""
    data = path.read_bytes()
    position, chapters = 0, []
    while position < len(data):
        position += 4  # length word before each chunk
        inflater = zlib.decompressobj()
        chunk = inflater.decompress(data[position:])
        position = len(data) - len(inflater.unused_data)
        chapters += split_novel(r_strings(chunk))
    return chapters


def r_strings(chunk: bytes) -> list[str]:
    """Strings of a serialized R character vector (type word 00 04 x 09, a big-endian length, the bytes)."""
    lines, position = [], chunk.index(b"\x00\x04\x00\x09")
    while position + 8 <= len(chunk) and chunk[position + 1] == 4 and chunk[position + 3] == 9:
        length = int.from_bytes(chunk[position + 4 : position + 8], "big")
        lines.append(chunk[position + 8 : position + 8 + length].decode("utf-8", "replace"))
        position += 8 + length
    return lines


def split_novel(lines: list[str]) -> list[Chapter]:
    """Cuts at chapter headings and joins the hard-wrapped lines of each paragraph."""
    novel = next(line for line in lines if line.strip()).strip().title().replace("And", "and")
    chapters = []
    starts = [i for i, line in enumerate(lines) if re.match(r"\s*chapter\s+[ivxlc\d]+", line, re.IGNORECASE)]
    for number, (start, end) in enumerate(pairwise([*starts, len(lines)]), 1):
        paragraphs = re.split(r"\n\s*\n", "\n".join(lines[start + 1 : end]).strip())
        body = "\n\n".join(re.sub(r"\s+", " ", p).strip() for p in paragraphs if p.strip())
        if len(body) > 500:
            chapters.append(Chapter(f"{novel}, chapter {number}", body))
    return chapters


def python_modules(folder: Path) -> list[tuple[str, str]]:
    """(dotted name, source) of the standard library's modules without tests, tables, generated files."""
    modules = []
    for path in sorted(folder.rglob("*.py")):
        relative = path.relative_to(folder)
        skipped = any(part in SKIPPED_PYTHON for part in relative.parts)
        if skipped or relative.name.startswith("_sysconfigdata"):
            continue
        source = path.read_text("utf-8", "replace").strip()
        if len(source) > 200:
            modules.append((".".join(relative.with_suffix("").parts), source + "\n"))
    return modules


def chatterbot_dialogues(folder: Path) -> list[list[str]]:
    """Lists of turns, the user first; files of alternative answers give one dialogue for each answer."""
    dialogues = []
    for path in sorted(folder.glob("*.yml")):
        for turns in yaml.safe_load(path.read_text("utf-8"))["conversations"]:
            turns = [str(turn).strip() for turn in turns]
            if path.stem in ALTERNATIVE_ANSWERS:
                dialogues += [[turns[0], answer] for answer in turns[1:]]
            else:
                dialogues.append(turns[: len(turns) // 2 * 2])
    return [turns for turns in dialogues if len(turns) >= 2 and all(turns)]
