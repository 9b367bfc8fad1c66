"""The settings of a training run, and whether a checkpoint was made with the same."""

from dataclasses import asdict, dataclass
from typing import Any

from mtp_mlx.errors import MisuseError, UserError
from mtp_mlx.kv_cache import MAX_DRAFT_TOKENS
from mtp_mlx.training.loss import Objective

FOLLOW, READ, GENERATE = "follow", "read", "generate"
WAYS = (FOLLOW, READ, GENERATE)


@dataclass(frozen=True)
class Settings:
    """What decides the outcome of a run, together with target, text and first drafter. Names are mlx-lm's, where it has
    them.

    Attributes:
        iters: steps.
        batch_size: rows a step.
        max_seq_length: tokens a row.
        learning_rate: of the matrices within the drafter, at full scale; the rest learns at `ADAM_SHARE` of it.
        decay: last part of the run in which the rates fall to 0.
        num_draft_tokens: draft steps K that are unrolled.
        step_decay: weight of each step relative to the one before.
        self_distill: what a drafter's own steps read. "follow": the target's choices from every place of the text;
            "read": the text as it is; "generate": text that the target writes after the prompts, read as it is.
        top_k: the target's likeliest tokens whose probabilities are learned.
        distribution_weight: share of the loss that they make up; the rest is the target's one choice.
        temperature: of the sampled stretches of what the target writes ("generate").
        seed: of everything that is random.
    """

    iters: int = 1000
    batch_size: int = 4
    max_seq_length: int = 512
    learning_rate: float = 0.03
    decay: float = 0.75
    num_draft_tokens: int = 4
    step_decay: float = 0.8
    self_distill: str = FOLLOW
    top_k: int = 8
    distribution_weight: float = 0.3
    temperature: float = 0.8
    seed: int = 0

    def __post_init__(self):
        for name, (least, most) in _RANGES.items():
            value = vars(self)[name]
            if not least <= value <= most:
                raise MisuseError(f"{option(name)} must be from {least:g} to {most:g}", given=value)
        if self.self_distill not in WAYS:
            raise MisuseError(f"--self-distill must be one of {', '.join(WAYS)}", given=self.self_distill)
        if self.max_seq_length < self.num_draft_tokens + 2:
            fix = f"it must be at least two more than --num-draft-tokens {self.num_draft_tokens}"
            raise MisuseError("--max-seq-length is too small", given=self.max_seq_length, fix=fix)

    @property
    def follow(self) -> int:
        """For how many tokens the target's choices are followed from every place."""
        return self.num_draft_tokens if self.self_distill == FOLLOW else 0

    @property
    def objective(self) -> Objective:
        return Objective(self.num_draft_tokens, self.step_decay, self.distribution_weight)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


_LARGE = 10**9
_RANGES = {
    "iters": (1, _LARGE),
    "batch_size": (1, 2**16),
    "max_seq_length": (4, 2**20),
    "learning_rate": (1e-9, 1),
    "decay": (0, 1),
    "num_draft_tokens": (1, MAX_DRAFT_TOKENS),
    "step_decay": (0.01, 1),
    "top_k": (1, 1024),
    "distribution_weight": (0, 1),
    "temperature": (0.01, 10),
    "seed": (0, 2**32 - 1),
}


def option(name: str) -> str:
    """The option of the command line that sets `name`."""
    return "--" + name.replace("_", "-")


def check_same(before: dict[str, Any], now: dict[str, Any], place: object) -> None:
    """Refuses to go on with other settings than a run was begun with.

    Args:
        before, now: names and values; other things that decide the outcome may be among them.
        place: where the run is, for the message.

    Raises:
        UserError: one differs; names it, with both values.
    """
    changed = [name for name in now if before.get(name) != now[name]]
    if changed:
        name = changed[0]
        others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise UserError(
            f"the run in the output folder was begun with other settings: {name} was {before.get(name)}{others}",
            given=f"{place}: {name} {now[name]}",
            fix="give what it was begun with, or name another --output",
        )
