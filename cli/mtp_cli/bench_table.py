"""Reports of `mtp bench` as tables: for people on a terminal or in a pipe, and in Markdown."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mtp_cli.bench_drafters import drafters_table, short_name
from mtp_cli.bench_facts import facts, machine_facts, verdict
from mtp_cli.pair import Pair
from mtp_cli.sampling import SamplingOptions
from mtp_cli.tables import PIPED_WIDTH, new_table, stdout

if TYPE_CHECKING:
    from mtp_mlx.bench.report import Report
    from mtp_mlx.bench.spread import Interval
    from mtp_mlx.bench.summary import Summary

_FIGURES = ("plain\ntok/s", "MTP\ntok/s", "speed-up", "95 %\nCI", "quartiles", "tokens\na round", "repeated\n8-grams")


def print_reports(reports: "Sequence[Report]", pair: Pair, sampling: SamplingOptions) -> None:
    """Prints to stdout; without a terminal, plain text of any width."""
    console = stdout()
    if len(reports) == 1:
        _print_one(console, reports[0], pair, sampling)
    else:
        _print_several(console, reports)


def print_markdown(reports: "Sequence[Report]") -> None:
    """Prints a Markdown table to stdout."""
    console = stdout(10 * PIPED_WIDTH)
    table = _table(console, reports[0]) if len(reports) == 1 else _sweep_table(console, reports)
    table.box = box.MARKDOWN
    for row in table.rows:
        row.end_section = False  # would be a second line of dashes
    for column in table.columns:
        column.header = str(column.header).replace("\n", " ")
    console.print(table)


def _print_one(console: Console, report: "Report", pair: Pair, sampling: SamplingOptions) -> None:
    console.print(_table(console, report), "")
    if report.overall.speed_up is not None:
        console.print(f"{verdict(report)}\n", style="bold", markup=False)
    _print_facts(console, facts(report, pair, sampling))


def _print_several(console: Console, reports: "Sequence[Report]") -> None:
    console.print(_sweep_table(console, reports), "")
    best = max((report for report in reports if report.overall.speed_up), key=_speed_up, default=None)
    if best is not None:
        at = f"{best.num_draft_tokens} drafts a round, {best.num_tokens} tokens a run"
        if len({report.drafter for report in reports}) > 1:
            console.print(drafters_table(new_table(console), reports), "")
            at = f"{short_name(best.drafter)}, {at}"
        console.print(
            f"fastest next to plain decoding: {at}. {verdict(best)}\n", style="bold", markup=False, soft_wrap=True
        )
    _print_facts(console, machine_facts(reports[0]))


def _speed_up(report: "Report") -> float:
    return report.overall.speed_up.median


def _print_facts(console: Console, found: list[tuple[str, str]]) -> None:
    if not console.is_terminal:
        for name, value in found:
            print(f"{name:<13}{value}")
        return
    grid = Table.grid("name", "value", padding=(0, 2, 0, 0))
    for name, value in found:
        grid.add_row(Text(name, "dim"), Text(value))
    console.print(grid)


def _table(console: Console, report: "Report") -> Table:
    table = _empty(console, "category", "prompts", *_FIGURES)
    summaries = report.categories
    for summary in summaries:
        table.add_row(summary.category, str(summary.prompts), *_figures(summary), end_section=summary is summaries[-1])
    table.add_row("all", str(report.overall.prompts), *_figures(report.overall), style="bold")
    return table


def _sweep_table(console: Console, reports: "Sequence[Report]") -> Table:
    """A row for each report, and, where they have several categories that are lengths, for each of those."""
    several = len({report.drafter for report in reports}) > 1
    table = _empty(console, *(["drafter"] if several else []), "drafts", "tokens\na run", "prompts", *_FIGURES)
    for report in reports:
        name = [short_name(report.drafter)] if several else []
        every = report.categories if _by_length(report) else [report.overall]
        for summary in every:
            prompts = summary.category if _by_length(report) else str(summary.prompts)
            row = [*name, str(report.num_draft_tokens), str(report.num_tokens), prompts]
            table.add_row(*row, *_figures(summary))
    return table


def _by_length(report: "Report") -> bool:
    return all(summary.category.endswith(" tokens") for summary in report.categories)


def _empty(console: Console, first: str, *others: str) -> Table:
    table = new_table(console)
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _figures(summary: "Summary") -> list[str]:
    row = [f"{summary.plain_tps.median:.1f}"]
    if summary.speed_up is None:
        row += ["–"] * 5
    else:
        speed_up = summary.speed_up
        row += [
            f"{summary.mtp_tps.median:.1f}",
            f"{speed_up.median:.2f}×",
            _range(summary.speed_up_interval),
            f"{speed_up.lower:.2f}–{speed_up.upper:.2f}",
            f"{summary.speculation.mean_acceptance_length:.2f}",
        ]
    return [*row, f"{summary.repeated_share:.0%}"]


def _range(interval: "Interval | None") -> str:
    return "–" if interval is None else f"{interval.lower:.2f}–{interval.upper:.2f}"
