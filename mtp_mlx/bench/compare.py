"""Two results of `mtp bench --json` side by side: what changed, and whether it is more than noise."""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mtp_mlx.bench.spread import Interval, paired_interval
from mtp_mlx.errors import MisuseError, UserError

DRIFT = 0.03  # speeds of one and the same thing differ by about this much between two sessions on one machine
_CONDITIONS = ("model", "sampling", "machine", "exact", "repeats", "stop_ids")
_Figure = Callable[[dict[str, Any]], float]


@dataclass(frozen=True)
class Change:
    """One figure, before and after.

    Attributes:
        before, after: medians over the prompts that both have.
        ratio: median over prompts of after ÷ before.
        interval: 95 % interval of the ratio; None for one prompt.
    """

    name: str
    before: float
    after: float
    ratio: float
    interval: Interval | None

    @property
    def is_more_than_noise(self) -> bool:
        """Whether the interval excludes no change, and the change is larger than a machine's drift."""
        return self.interval is not None and 1.0 not in self.interval and abs(self.ratio - 1) > DRIFT

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "more_than_noise": self.is_more_than_noise}


@dataclass(frozen=True)
class Comparison:
    """Two reports at the same depth and length.

    Attributes:
        prompts: that both have.
        other_outputs: how many of those have other tokens now.
        other_conditions: name, before and after of what was not the same.
    """

    num_draft_tokens: int | str
    num_tokens: int
    prompts: int
    changes: list[Change]
    other_outputs: int
    other_conditions: list[tuple[str, Any, Any]]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "changes": [change.to_dict() for change in self.changes]}


def read_reports(path: Path) -> list[dict[str, Any]]:
    """The reports in a file that `mtp bench --json` wrote.

    Raises:
        UserError: it cannot be read, or is something else.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UserError("cannot read the result", given=f"{path}: {error.strerror}", fix="check the path") from error
    except ValueError:
        data = None
    reports = data.get("reports", [data]) if isinstance(data, dict) else None
    if not reports or not all(isinstance(each, dict) and "prompts" in each and "overall" in each for each in reports):
        raise UserError("not a result of mtp bench", given=path, fix="write one with mtp bench --json > FILE")
    return reports


def compare(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[Comparison]:
    """Compares the reports that have the same depth and length; one with one whatever they have.

    Raises:
        MisuseError: they have no depth and length, or no prompts, in common.
    """
    if len(before) == len(after) == 1:
        pairs = [(before[0], after[0])]
    else:
        known = {_key(report): report for report in before}
        pairs = [(known[_key(report)], report) for report in after if _key(report) in known]
    if not pairs:
        raise MisuseError("the results have no depth and length in common")
    return [_compare(*pair) for pair in pairs]


def _key(report: dict[str, Any]) -> tuple:
    return report["num_draft_tokens"], report["num_tokens"], report.get("drafter")


def _compare(before: dict[str, Any], after: dict[str, Any]) -> Comparison:
    known = {_prompt_key(prompt): prompt for prompt in before["prompts"]}
    pairs = [(known[_prompt_key(p)], p) for p in after["prompts"] if _prompt_key(p) in known]
    if not pairs:
        raise MisuseError("the results have no prompts in common", fix="measure both with the same suite or file")
    names = ("num_draft_tokens", "num_tokens", *_CONDITIONS)
    return Comparison(
        after["num_draft_tokens"],
        after["num_tokens"],
        len(pairs),
        [_change(name, figure, pairs) for name, figure in _figures(pairs)],
        sum(a["runs"]["plain"][0]["tokens"] != b["runs"]["plain"][0]["tokens"] for a, b in pairs),
        [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)],
    )


def _prompt_key(prompt: dict[str, Any]) -> tuple:
    return prompt["category"], prompt["prompt"], prompt["prompt_tokens"]


def _figures(pairs: Sequence[tuple[dict, dict]]) -> list[tuple[str, _Figure]]:
    found = [
        ("first token, s", lambda prompt: _median(prompt, "plain", "prefill_seconds")),
        ("plain, tok/s", lambda prompt: _median(prompt, "plain", "decode_tps")),
    ]
    if all(prompt["runs"]["mtp"] for pair in pairs for prompt in pair):
        found += [
            ("MTP, tok/s", lambda prompt: _median(prompt, "mtp", "decode_tps")),
            ("speed-up", lambda prompt: prompt["speed_up"]),
            ("tokens a round", lambda p: p["runs"]["mtp"][0]["speculation"]["mean_acceptance_length"]),
        ]
    return found


def _median(prompt: dict[str, Any], way: str, name: str) -> float:
    return statistics.median(run[name] for run in prompt["runs"][way])


def _change(name: str, figure: _Figure, pairs: Sequence[tuple[dict, dict]]) -> Change:
    before, after = [figure(a) for a, _ in pairs], [figure(b) for _, b in pairs]
    ratio = statistics.median(b / a for a, b in zip(before, after, strict=True))
    interval = paired_interval([[value] for value in after], [[value] for value in before]) if len(pairs) > 1 else None
    return Change(name, statistics.median(before), statistics.median(after), ratio, interval)
