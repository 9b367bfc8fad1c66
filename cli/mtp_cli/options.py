"""Options that commands share. Values that can never work are refused here, before a model is loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from mtp_weights.errors import MisuseError

_MOST_DIGITS = 18  # of a number that could be meant; Python itself refuses to read thousands of them


def positive(name: str) -> Callable[[int], int]:
    """A callback that refuses numbers below 1."""

    def check(value: int) -> int:
        if value < 1:
            raise MisuseError(f"{name} must be positive", given=value)
        return value

    return check


def check_max_tokens(value: int) -> int:
    """Refuses limits that no reply could keep."""
    if value == 0 or value < -1:
        raise MisuseError("--max-tokens must be positive, or -1 for no limit", given=value)
    return value


def check_text(value: str | list[str] | None) -> str | list[str] | None:
    """Refuses bytes that are not UTF-8, which Python passes on as lone surrogates."""
    for text in [value] if isinstance(value, str) else value or []:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise MisuseError("options must be UTF-8 text", given=ascii(text))
    return value


def parse_num_draft_tokens(text: str, name: str = "--num-draft-tokens") -> int | str:
    """ "auto" or a number; the library knows which numbers are possible."""
    if text == "auto":
        return text
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        raise MisuseError(f"{name} must be a number or 'auto'", given=text)
    return int(text)


def whole_number(name: str, text: str) -> int:
    """The number that a person wrote."""
    try:
        return int(text)
    except ValueError as error:
        raise MisuseError(f"{name} must be a whole number", given=text) from error


Model = Annotated[
    str, typer.Option("--model", metavar="NAME", help="The target: a folder, a Hugging Face repository, or 'demo'.")
]
DraftModel = Annotated[
    str,
    typer.Option("--draft-model", metavar="NAME", help="Its drafter: a folder or repository; 'auto' finds it."),
]
NoDraft = Annotated[bool, typer.Option("--no-draft", help="Decode without a drafter.")]
NumDraftTokens = Annotated[
    str,
    typer.Option(
        "--num-draft-tokens", metavar="N|auto", help="Tokens to draft in each round; 'auto' finds out what pays."
    ),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact", help="Compute so that the output is the same to the bit with drafts and without; says what it costs."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Load a model that does not fit this machine's memory.")]
AdapterPath = Annotated[
    Path | None, typer.Option("--adapter-path", metavar="DIR", help="LoRA adapters of mlx-lm, for the target.")
]
DraftPosition = Annotated[
    str | None,
    typer.Option(
        "--draft-position",
        metavar="POSITION",
        help="Where the drafter stands: 'next' or 'last_cached'; else what `mtp verify` found better.",
    ),
]
MaxTokens = Annotated[
    int,
    typer.Option(
        "--max-tokens",
        "-m",
        metavar="N",
        help="Most tokens of a reply; -1 for no limit.",
        callback=check_max_tokens,
    ),
]
PrefillStepSize = Annotated[
    int,
    typer.Option(
        "--prefill-step-size",
        metavar="N",
        help="Prompt tokens to process at a time; fewer need less memory.",
        callback=positive("--prefill-step-size"),
    ),
]
SystemPrompt = Annotated[
    str | None,
    typer.Option(
        "--system-prompt", metavar="TEXT", help="Instructions that come before the conversation.", callback=check_text
    ),
]
_OWN = "default: the model's own"  # generation_config.json
Temperature = Annotated[
    float | None, typer.Option("--temp", metavar="X", help=f"Temperature; 0 takes the likeliest token ({_OWN}).")
]
TopP = Annotated[
    float | None,
    typer.Option("--top-p", metavar="X", help=f"Keep the likeliest tokens of this share; 1: all ({_OWN})."),
]
TopK = Annotated[
    int | None, typer.Option("--top-k", metavar="N", help=f"Keep so many of the likeliest tokens; 0: all ({_OWN}).")
]
MinP = Annotated[
    float | None,
    typer.Option("--min-p", metavar="X", help=f"Keep tokens this likely, next to the likeliest; 0: all ({_OWN})."),
]
MinTokensToKeep = Annotated[
    int, typer.Option("--min-tokens-to-keep", metavar="N", help="Tokens that --min-p keeps in any case.")
]
BenchTemperature = Annotated[
    float, typer.Option("--temp", metavar="X", help="Temperature; 0 takes the likeliest token.")
]
XtcProbability = Annotated[
    float, typer.Option("--xtc-probability", metavar="X", help="How often to leave out the likeliest tokens (XTC).")
]
XtcThreshold = Annotated[
    float, typer.Option("--xtc-threshold", metavar="X", help="XTC leaves out tokens above this but the last of them.")
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", help="The same seed gives the same text, however much is drafted."),
]
DraftTemperature = Annotated[
    float | None,
    typer.Option("--draft-temp", metavar="X", help="The drafter's temperature; changes the speed, not the output."),
]
Lenient = Annotated[
    bool,
    typer.Option("--lenient", help="Accept drafts that are merely plausible: output may differ from the target's."),
]
RepetitionPenalty = Annotated[
    float | None, typer.Option("--repetition-penalty", metavar="X", help="Make repeated tokens less likely; 1: no.")
]
RepetitionContextSize = Annotated[
    int,
    typer.Option("--repetition-context-size", metavar="N", help="Tokens back that penalties look."),
]
PresencePenalty = Annotated[
    float | None, typer.Option("--presence-penalty", metavar="X", help="Lower the logit of tokens that occurred.")
]
FrequencyPenalty = Annotated[
    float | None,
    typer.Option("--frequency-penalty", metavar="X", help="Lower a logit for each time its token occurred."),
]
