"""`mtp train --dry-run`: what a run would take, as a few lines or as JSON."""

import json
from typing import TYPE_CHECKING

from mtp_cli.console import status
from mtp_cli.train_view import duration

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from mtp_mlx.models.target import Target
    from mtp_mlx.training.begin import Plan
    from mtp_mlx.training.estimate import Estimate


def print_estimate(plan: "Plan", target: "Target", tokenizer: "TokenizerWrapper", as_json: bool) -> None:
    """Measures a few steps and prints what all of them would take."""
    from mtp_mlx.training.estimate import estimate

    with status("measuring a few steps"):
        found = estimate(plan, target, tokenizer)
    print(json.dumps(found.to_dict()) if as_json else "\n".join(_lines(found, plan)))


def _lines(found: "Estimate", plan: "Plan") -> list[str]:
    from mtp_mlx.memory import gigabytes

    writing = f", {duration(found.write_seconds)} for the target to write text" if found.write_seconds else ""
    return [
        f"drafter   {found.parameters / 1e6:.1f} million weights",
        f"text      {found.train_tokens:,} tokens in {found.train_rows} rows, {found.valid_rows} rows to validate with",
        f"memory    {gigabytes(found.memory)}",
        f"disk      {gigabytes(found.observed_bytes)} for what the target makes of the text, in {plan.cache}",
        f"          {gigabytes(found.output_bytes)} for the drafter and the checkpoint, in {plan.output}",
        f"time      {duration(found.seconds)}: {duration(found.observe_seconds)} for the target to read the text"
        f"{writing}, {duration(found.train_seconds)} for {plan.settings.iters} steps and their evaluations",
    ]
