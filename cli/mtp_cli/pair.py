"""Loads what the options name: a target, its tokenizer, and its drafter."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mtp_cli.console import note, status
from mtp_cli.download import bring
from mtp_cli.options import parse_num_draft_tokens
from mtp_weights.errors import MisuseError, UserError

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from mtp_mlx.models.drafter import Drafter
    from mtp_mlx.models.target import Target

USUAL_CONTEXT = 4096  # tokens of a long chat
CLOSE = 0.9  # of the memory that there is: worth a word before it is filled


@dataclass(frozen=True)
class PairOptions:
    """Which target and drafter to use, as the user named them."""

    model: str
    draft_model: str
    no_draft: bool
    num_draft_tokens: int | str
    exact: bool = False
    force: bool = False
    adapter_path: Path | None = None
    draft_position: str | None = None

    @classmethod
    def of(
        cls,
        model: str,
        draft_model: str,
        no_draft: bool,
        num_draft_tokens: str,
        exact: bool = False,
        force: bool = False,
        adapter_path: Path | None = None,
        draft_position: str | None = None,
    ) -> "PairOptions":
        """Checks the options against each other and against what the library can do."""
        from mtp_mlx.decoding.depth import AutoDepth, depth_policy
        from mtp_mlx.models.gemma4_assistant import DRAFT_POSITIONS

        if no_draft and draft_model != "auto":
            raise MisuseError("--draft-model and --no-draft exclude each other", fix="give one of them")
        depth = parse_num_draft_tokens(num_draft_tokens)
        depth_policy(depth, AutoDepth())  # refuses a number out of range
        if draft_position not in (None, *DRAFT_POSITIONS):
            known = " or ".join(DRAFT_POSITIONS)
            raise MisuseError(f"--draft-position must be {known}", given=draft_position)
        return cls(model, draft_model, no_draft, depth, exact, force, adapter_path, draft_position)


@dataclass(frozen=True)
class Pair:
    """A target with its tokenizer, and its drafter where one is wanted."""

    model: "Target"
    tokenizer: "TokenizerWrapper"
    drafter: "Drafter | None"
    options: PairOptions
    drafter_name: str | None = None

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
        return {
            "draft_model": self.drafter,
            "num_draft_tokens": self.options.num_draft_tokens,
            "exact": self.options.exact,
        }


def load_pair(options: PairOptions, context: int = USUAL_CONTEXT) -> Pair:
    """Loads target, tokenizer and drafter; a drafter that does not load is an error.

    Args:
        context: tokens of keys and values that memory must have room for, beside the weights.

    Raises:
        UserError: something is not there or not right, or the pair does not fit this machine's memory.
    """
    _warn_of_slow_blas()
    target = bring(options.model)
    drafter = None if options.no_draft else find_drafter(options, target)
    with _explained():
        folder = None if drafter is None else bring(drafter)
    _check_memory(options, target, folder, context)
    with status(f"loading {options.model}"):
        from transformers.utils import logging

        from mtp_mlx import load

        logging.set_verbosity_error()  # its warnings are for programmers
        model, tokenizer = load(target, options.adapter_path)
    model.name = options.model
    loaded = None if drafter is None else _load_drafter(options, drafter, folder, model)
    return Pair(model, tokenizer, loaded, options, drafter)


def drafters_of(pair: Pair, others: Sequence[str]) -> "dict[str, Drafter]":
    """The drafter of `pair` and `others` for its target, by name; none where it has none."""
    found = {} if pair.drafter is None else {pair.drafter_name: pair.drafter}
    for name in others:
        with _explained():
            folder = bring(name)
        found[name] = _load_drafter(pair.options, name, folder, pair.model)
    return found


def _warn_of_slow_blas() -> None:
    import mtp_weights
    from mtp_mlx.memory import ON_CPU

    blas = mtp_weights.BLAS
    if ON_CPU and blas.problem:
        note(f"slow: no OpenBLAS, because {blas.problem}; mend it with: {blas.fix}")


def find_drafter(options: PairOptions, target: Path) -> str:
    """The name of the drafter; "auto" finds it by the target's configuration."""
    from mtp_mlx.models.registry import target_config
    from mtp_weights.pairs import DEMO_DRAFTER, choose_drafter
    from mtp_weights.read import read_config

    config = target_config(read_config(target))  # a target that is none is told before its drafter is missed
    if options.draft_model != "auto":
        return options.draft_model
    with _explained():
        choice = choose_drafter(options.model, config.model_type, config.hidden_size)
    if choice.name != DEMO_DRAFTER:  # which is nobody's choice
        note(f"drafter: {choice.name}, because {choice.reason}")
    return choice.name


def _check_memory(options: PairOptions, target: Path, drafter: Path | None, context: int) -> None:
    from mtp_mlx.catalog import smaller_variant
    from mtp_mlx.memory import available, check_fits, gigabytes, needs
    from mtp_mlx.models.registry import target_config
    from mtp_weights.read import read_config

    need = needs(target, drafter, context)
    if need.total <= available() * CLOSE:
        return
    if need.total > available() and not options.force:
        config = target_config(read_config(target))
        check_fits(need, context, smaller_variant(config, context, available()))
    note(f"the pair needs {gigabytes(need.total)} of memory, of {gigabytes(available())} that a model can have here")


def _load_drafter(options: PairOptions, name: str, folder: Path, model: "Target") -> "Drafter":
    from mtp_mlx import load_drafter
    from mtp_weights.preferences import draft_position

    position = options.draft_position or draft_position(options.model, name) or "next"
    with _explained(), status(f"loading {name}"):
        return load_drafter(folder, model, draft_position=position)


@contextmanager
def _explained() -> Iterator[None]:
    """Adds to an error on a drafter how to do without one."""
    try:
        yield
    except UserError as error:
        fix = f"{error.fix} (--no-draft decodes without one)" if error.fix else "--no-draft decodes without one"
        raise UserError(f"no drafter: {error.problem}", given=error.given, fix=fix) from error
