"""The proof of a pair: its files, whether it belongs together, and how exact its output is on this machine.

"Exact" is told as a contract: *bit-exact*, where all widths compute the same bits and speculation cannot change
anything; *exact at verification width*, where `exact=True` gives what plain decoding through that width gives; or *not
exact*, with the reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mtp_mlx.acceptance import measure_acceptance
from mtp_mlx.bench.runs import Divergence
from mtp_mlx.doctor import ERROR, OK, WARNING, Check
from mtp_mlx.errors import UserError
from mtp_mlx.exactness import ExactWay, Kind
from mtp_mlx.generate import generate_step
from mtp_mlx.models.gemma4_assistant import DRAFT_POSITIONS, Gemma4Assistant
from mtp_mlx.models.target import Target
from mtp_mlx.speculation import Speculation
from mtp_weights.check import check_checksums, check_numbers
from mtp_weights.shards import weight_files

BIT_EXACT, AT_WIDTH, NOT_EXACT = "bit-exact", "exact at verification width", "not exact"
NEAR_TIE = 1e-2  # a logit gap that rounding of 16-bit weights explains; a larger one is a fault
MARGIN = 1.02  # tokens a round, over a few hundred drafts; the demo pair's positions differ by 1 %

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Comparison:
    """Replies with a drafter beside replies without.

    Attributes:
        divergences: of each prompt, where its two replies first differ, or None.
    """

    divergences: tuple[Divergence | None, ...]

    @property
    def first(self) -> Divergence | None:
        return next((each for each in self.divergences if each is not None), None)

    @property
    def differing(self) -> int:
        return sum(each is not None for each in self.divergences)


@dataclass(frozen=True)
class Contract:
    """What can be relied on.

    Attributes:
        name: BIT_EXACT, AT_WIDTH or NOT_EXACT.
        reason: in words.
        is_fault: whether this is not the machine's rounding, but something that must be mended.
    """

    name: str
    reason: str
    is_fault: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_files(name: str, folder: Path, progress: Progress = lambda done, total: None) -> Check:
    """Reads all files of a checkpoint: shards complete, checksums as the hub gave them, no NaN, a true permutation."""
    try:
        files, checksums, tensors = weight_files(folder), check_checksums(folder), check_numbers(folder, progress)
    except UserError as error:
        return Check(name, ERROR, error.problem, f"{error.given}: {error.fix}")
    known = f"{checksums} checksums are the hub's" if checksums else "no download, so there are no checksums"
    where = "one file" if len(files) == 1 else f"{len(files)} files"
    return Check(name, OK, f"{tensors} tensors in {where}, all numbers finite; {known}")


def compare(
    model: Target,
    drafter: Gemma4Assistant,
    prompts: Sequence[list[int]],
    *,
    num_tokens: int,
    num_draft_tokens: int,
    exact: bool = False,
) -> Comparison:
    """Decodes greedily after each prompt, without and with the drafter."""
    options = {"max_tokens": num_tokens, "num_draft_tokens": num_draft_tokens, "exact": exact}
    divergences = []
    for ids in prompts:
        plain = [(token, logprobs) for token, logprobs, _ in generate_step(ids, model, **options)]
        tokens = [token for token, _, _ in generate_step(ids, model, draft_model=drafter, **options)]
        divergences.append(_divergence(plain, tokens))
    return Comparison(tuple(divergences))


def _divergence(plain: list, tokens: list[int]) -> Divergence | None:
    for index, ((expected, logprobs), token) in enumerate(zip(plain, tokens, strict=True)):
        if expected != token:
            return Divergence(index, expected, token, (logprobs[expected] - logprobs[token]).item())
    return None


def contract(kinds: Sequence[Kind], ordinary: Comparison, way: ExactWay | None, exact: Comparison | None) -> Contract:
    """What the measurements say.

    Args:
        ordinary: replies decoded as usual.
        way, exact: how `exact=True` decodes, and replies decoded so; None where there is no such way.
    """
    if all(kind.is_exact for kind in kinds):
        if ordinary.differing:
            return Contract(
                NOT_EXACT, "every layer is, and yet replies differ: this is a fault, please report it", True
            )
        return Contract(BIT_EXACT, "all widths compute the same bits, in every kind of layer")
    inexact = ", ".join(kind.name for kind in kinds if not kind.is_exact)
    if way is None or exact is None:
        return Contract(NOT_EXACT, f"a row's result depends on its place among the others ({inexact})")
    if exact.differing:
        return Contract(NOT_EXACT, f"replies differ with --exact, too ({inexact}): please report it", True)
    if way.is_free:
        return Contract(
            BIT_EXACT, f"with --exact, drafting {way.widths.most - 1} at most; wider passes round otherwise"
        )
    return Contract(
        AT_WIDTH,
        f"with --exact, equal to plain decoding that computes {way.widths.plain} rows for one, "
        f"which takes {way.price:.2f} times as long; one row rounds otherwise",
    )


def positions(
    model: Target, drafter: Gemma4Assistant, prompts: Sequence[list[int]], *, num_tokens: int, num_draft_tokens: int
) -> dict[str, Speculation]:
    """Acceptance with each draft position; the drafter stays at its own."""
    own, found = drafter.draft_position, {}
    try:
        for position in DRAFT_POSITIONS:
            drafter.draft_position = position
            found[position] = measure_acceptance(
                model, drafter, prompts, num_tokens=num_tokens, num_draft_tokens=num_draft_tokens
            )
    finally:
        drafter.draft_position = own
    return found


def better_position(found: dict[str, Speculation]) -> str:
    """The one that transformers takes, unless another is better by more than chance."""
    usual = DRAFT_POSITIONS[0]
    best = max(found, key=lambda position: found[position].mean_acceptance_length)
    is_better = found[best].mean_acceptance_length > found[usual].mean_acceptance_length * MARGIN
    return best if is_better else usual


def width_checks(kinds: Sequence[Kind], most_rows: int) -> list[Check]:
    """A line for each kind of layer."""
    return [_width_check(kind, most_rows) for kind in kinds]


def _width_check(kind: Kind, most_rows: int) -> Check:
    layers = f"{kind.layers} layers, " if kind.layers > 1 else ""
    if kind.is_exact:
        return Check(kind.name, OK, f"{layers}1 to {most_rows} rows compute the same bits")
    differs, others = _listed(kind.differs), _listed(kind.unlike_widest)
    text = f"{layers}{differs} rows round otherwise than 1 does, by {kind.largest:.0e} of the largest number"
    return Check(kind.name, WARNING, text + (f"; {others} otherwise than {most_rows}" if others else ""))


def greedy_check(comparison: Comparison) -> Check:
    """Whether replies are the same, and where not, how near a tie the first difference was."""
    total, first = len(comparison.divergences), comparison.first
    if first is None:
        return Check("replies", OK, f"the same with drafts and without, {total} of {total}")
    state = WARNING if first.logit_gap < NEAR_TIE else ERROR
    where = f"first at token {first.index + 1}, where the two best logits are {first.logit_gap:.1e} apart"
    return Check("replies", state, f"{comparison.differing} of {total} differ with drafts; {where}")


def contract_check(found: Contract) -> Check:
    state = OK if found.name != NOT_EXACT else ERROR if found.is_fault else WARNING
    return Check("contract", state, f"{found.name}: {found.reason}")


def _listed(numbers: Sequence[int]) -> str:
    """Ascending numbers in words: 2, 3, 4, 7 -> "2–4, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
