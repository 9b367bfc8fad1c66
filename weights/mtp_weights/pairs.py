"""Which drafter belongs to which target.

A drafter reads its target's hidden states, keys and values, so it fits one backbone. The hidden size tells the
official ones apart, and holds for fine-tunes and conversions of any name. `pairs.json` is the list, after
Google's model cards; targets trained for quantization (QAT) have drafters of their own.
"""

import json
import re
from pathlib import Path

from mtp_weights.errors import UserError
from mtp_weights.locate import DEMO_DRAFTER, DEMO_TARGET, bundled_folder

_LIST = json.loads(Path(__file__).with_name("pairs.json").read_bytes())
_PAIRS = {pair["hidden_size"]: pair for pair in _LIST}
_QAT = re.compile(r"gemma-4-[^/]*-qat\b", re.IGNORECASE)


def drafter_for(target_name: str, hidden_size: int) -> str:
    """The name of the drafter for a target, for `locate.resolve`.

    Args:
        target_name: as the user or `resolve` gave it: "demo", a repository id, or a folder.
        hidden_size: of the target's text config.

    Raises:
        UserError: no drafter is known for this hidden size.
    """
    if target_name == DEMO_TARGET or Path(target_name) == bundled_folder(DEMO_TARGET):
        return DEMO_DRAFTER
    pair = _PAIRS.get(hidden_size)
    if pair is None:
        raise UserError(
            f"no drafter is known for a target of hidden size {hidden_size}",
            given=target_name,
            fix="name one as the draft model, or run without a drafter",
        )
    return pair["qat_drafter"] if _QAT.search(target_name) else pair["drafter"]


def drafter_name(hidden_size: int) -> str | None:
    """The official drafter for a backbone of `hidden_size`, or None; for messages about a wrong pair."""
    pair = _PAIRS.get(hidden_size)
    return None if pair is None else pair["drafter"]
