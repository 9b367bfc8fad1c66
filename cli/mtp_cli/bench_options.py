"""Options of `mtp bench` alone. Lists are written with commas, as in llama-bench."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from mtp_cli import options
from mtp_cli.bench_output import FORMATS, check_format
from mtp_cli.bench_report import check_report
from mtp_weights.errors import MisuseError


def positive_numbers(name: str) -> Callable[[str | None], str | None]:
    """A callback that refuses anything but positive whole numbers with commas between them."""

    def check(text: str | None) -> str | None:
        if text is not None:
            numbers(text, name)
        return text

    return check


def numbers(text: str, name: str) -> list[int]:
    """The numbers in a list."""
    found = [part.strip() for part in text.split(",")]
    for part in found:
        if not part.isascii() or not part.isdigit() or int(part[:9]) < 1 or len(part) > 9:
            raise MisuseError(f"{name} must be a positive number, or several with commas between them", given=text)
    return [int(part) for part in dict.fromkeys(found)]


def depths(text: str) -> list[int | str]:
    """The depths in a list: numbers of drafts, or "auto"."""
    found = [options.parse_num_draft_tokens(part.strip()) for part in text.split(",")]
    return list(dict.fromkeys(found))


def drafters(text: str | None, draft_model: str, no_draft: bool) -> list[str]:
    """The drafters to measure: those of a list, or the one there is."""
    if text is None:
        return [draft_model]
    if draft_model != "auto" or no_draft:
        raise MisuseError("--drafters goes with neither --draft-model nor --no-draft", fix="name all in --drafters")
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise MisuseError("--drafters must be different names with commas between them", given=text)
    return names


def check_delay(value: float) -> float:
    """Refuses times that cannot be waited for."""
    if not 0 <= value <= 3600:
        raise MisuseError("--delay must be between 0 and 3600 seconds", given=value)
    return value


Suite = Annotated[
    str | None,
    typer.Option(
        "--suite",
        metavar="NAMES",
        help="Suites to measure on, with commas, or 'all': chat, code, prose, structured, notifications, "
        "proofreading, replies, translation, long. [default: all but long; the demo pair's held-out text]",
        show_default=False,
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option("--prompts", metavar="FILE", help="Your own prompts: one on each line, or JSON objects (.jsonl)."),
]
Limit = Annotated[
    int, typer.Option(metavar="N", help="Most prompts of each category.", callback=options.positive("--limit"))
]
PromptTokens = Annotated[
    str | None,
    typer.Option(
        "--prompt-tokens",
        "-p",
        metavar="N,…",
        help="Prompts of these lengths instead, cut from the texts.",
        callback=positive_numbers("--prompt-tokens"),
    ),
]
NumTokens = Annotated[
    str,
    typer.Option(
        "--num-tokens",
        "-n",
        "-g",
        metavar="N,…",
        help="Tokens of each run.",
        callback=positive_numbers("--num-tokens"),
    ),
]
IgnoreEos = Annotated[
    bool,
    typer.Option(
        "--ignore-eos/--stop-at-eos",
        help="Equally long runs, or runs that end where the reply does, with --num-tokens at most.",
    ),
]
Repeats = Annotated[
    int,
    typer.Option(
        "--repeats", "-r", metavar="N", help="Runs of each prompt and way.", callback=options.positive("--repeats")
    ),
]
Delay = Annotated[
    float,
    typer.Option(
        "--delay", metavar="S", help="Seconds to rest before each run, if the machine gets hot.", callback=check_delay
    ),
]
Output = Annotated[
    str,
    typer.Option("--output", "-o", metavar="|".join(FORMATS), help="What to print.", callback=check_format),
]
Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE.html", help="Also write a page with charts.", callback=check_report),
]
AsJson = Annotated[bool, typer.Option("--json", help="The same as -o json: every run.")]
Estimate = Annotated[
    str | None,
    typer.Option(
        "--estimate",
        metavar="NAME",
        help="Predict instead, before a download: e2b, e4b, 12b, 26b-a4b, 31b, demo, or a folder with a config.json.",
    ),
]
QBits = Annotated[
    int | None, typer.Option("--q-bits", metavar="N", help="Bits of the target's weights in an estimate.")
]
Drafters = Annotated[
    str | None,
    typer.Option(
        "--drafters",
        metavar="A,B,…",
        help="Compare these drafters instead, each named as --draft-model is: MTP drafters, or small models that "
        "draft by themselves.",
    ),
]
Depths = Annotated[
    str,
    typer.Option(
        "--num-draft-tokens",
        metavar="N|auto,…",
        help="Tokens to draft in each round; several are compared, each beside plain decoding.",
    ),
]
