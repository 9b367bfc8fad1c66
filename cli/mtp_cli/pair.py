"""Loads what the options name: a target, its tokenizer, and its drafter."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mtp_cli.console import note, status
from mtp_cli.download import bring
from mtp_cli.options import parse_num_draft_tokens
from mtp_weights.errors import MisuseError, UserError

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from mtp_mlx.models.gemma4 import Gemma4
    from mtp_mlx.models.gemma4_assistant import Gemma4Assistant


@dataclass(frozen=True)
class PairOptions:
    """Which target and drafter to use, as the user named them."""

    model: str
    draft_model: str
    no_draft: bool
    num_draft_tokens: int | str

    @classmethod
    def of(cls, model: str, draft_model: str, no_draft: bool, num_draft_tokens: str) -> "PairOptions":
        """Checks the options against each other and against what the library can do."""
        from mtp_mlx.decoding.depth import AutoDepth, depth_policy

        if no_draft and draft_model != "auto":
            raise MisuseError("--draft-model and --no-draft exclude each other", fix="give one of them")
        depth = parse_num_draft_tokens(num_draft_tokens)
        depth_policy(depth, AutoDepth())  # refuses a number out of range
        return cls(model, draft_model, no_draft, depth)


@dataclass(frozen=True)
class Pair:
    """A target with its tokenizer, and its drafter where one is wanted."""

    model: "Gemma4"
    tokenizer: "TokenizerWrapper"
    drafter: "Gemma4Assistant | None"
    options: PairOptions

    @property
    def drafts(self) -> bool:
        """Whether there is anything to draft with, and it is asked to."""
        return self.drafter is not None and self.options.num_draft_tokens != 0

    def drafting(self, num_tokens: int | str) -> "Pair":
        """The same pair, which drafts so many tokens a round."""
        from mtp_mlx.decoding.depth import AutoDepth, depth_policy

        depth_policy(num_tokens, AutoDepth())  # refuses a number out of range
        return replace(self, options=replace(self.options, num_draft_tokens=num_tokens))

    @property
    def draft_options(self) -> dict:
        """The arguments of `stream_generate` that say how to draft."""
        return {"draft_model": self.drafter, "num_draft_tokens": self.options.num_draft_tokens}


def load_pair(options: PairOptions) -> Pair:
    """Loads target, tokenizer and drafter; a drafter that does not load is an error."""
    bring(options.model)
    with status(f"loading {options.model}"):
        from transformers.utils import logging

        from mtp_mlx import load

        logging.set_verbosity_error()  # its warnings are for programmers
        model, tokenizer = load(options.model)
    drafter = None if options.no_draft else _load_drafter(options, model)
    return Pair(model, tokenizer, drafter, options)


def _load_drafter(options: PairOptions, model: "Gemma4") -> "Gemma4Assistant":
    from mtp_mlx import load_drafter

    try:
        name = _choose_drafter(model) if options.draft_model == "auto" else options.draft_model
        bring(name)
        with status(f"loading {name}"):
            return load_drafter(name, model)
    except UserError as error:
        fix = f"{error.fix} (--no-draft decodes without one)" if error.fix else "--no-draft decodes without one"
        raise UserError(f"no drafter: {error.problem}", given=error.given, fix=fix) from error


def _choose_drafter(model: "Gemma4") -> str:
    from mtp_weights.pairs import DEMO_DRAFTER, choose_drafter

    choice = choose_drafter(model.name, model.config.hidden_size)
    if choice.name != DEMO_DRAFTER:  # which is nobody's choice
        note(f"drafter: {choice.name}, because {choice.reason}")
    return choice.name
