"""What `mtp bench --drafters` says of each drafter beside its speed: what it costs, and how good its drafts are."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from mtp_mlx.bench.report import Report

MOST_POSITIONS = 6
NAME_WIDTH = 24


def short_name(drafter: str) -> str:
    """The last part of a repository's or folder's name."""
    name = PurePath(drafter).name or drafter
    return name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 1]}…"


def drafters_table(table: Table, reports: "Sequence[Report]") -> Table:
    """Fills an empty table: a column for each report, a row for each figure, the extra tokens of each category too."""
    table.add_column("")
    for report in reports:
        table.add_column(f"{short_name(report.drafter)}\n{report.num_draft_tokens} drafts", justify="right")
    for name, figures in _rows(reports):
        table.add_row(name, *figures)
    return table


def _rows(reports: "Sequence[Report]") -> list[tuple[str, list[str]]]:
    memory = [report.memory for report in reports]
    rows = [
        ("drafter, MB", [f"{each.drafter / 1e6:.1f}" for each in memory]),
        ("keys and values, MB", [f"{each.key_values / 1e6:.1f}" for each in memory]),
        ("peak memory, MB", [f"{each.mtp_peak / 1e6:.0f}" for each in memory]),
        ("first token, ms", [f"{report.drafting_first_token_seconds.median * 1e3:.1f}" for report in reports]),
    ]
    deepest = max(len(report.overall.speculation.acceptance_by_position) for report in reports)
    rows += [
        (f"accepted, place {place + 1}", [_acceptance(report, place) for report in reports])
        for place in range(min(deepest, MOST_POSITIONS))
    ]
    for n, summary in enumerate(reports[0].categories):
        each = [report.categories[n] for report in reports]
        rows.append((f"extra tokens, {summary.category}", [_extra(s.speculation) for s in each]))
    return [*rows, ("extra tokens, all", [_extra(report.overall.speculation) for report in reports])]


def _acceptance(report: "Report", place: int) -> str:
    shares = report.overall.speculation.acceptance_by_position
    return f"{shares[place]:.0%}" if place < len(shares) else "–"


def _extra(speculation) -> str:
    """Accepted drafts a verification."""
    return f"{max(speculation.mean_acceptance_length - 1, 0):.2f}"
