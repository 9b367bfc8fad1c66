"""Puts the page together: what is in which section; how it looks is in `page.html`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mtp_mlx.bench.page import charts
from mtp_mlx.bench.report import Report
from mtp_mlx.bench.summary import Summary


class Chart(NamedTuple):
    """A drawing with its title and a line that says how to read it."""

    title: str
    note: str
    svg: Markup


def render_page(reports: Sequence[Report], title: str, verdict: str, facts: Sequence[tuple[str, str]]) -> str:
    """The whole page.

    Args:
        reports: of one model and machine; the page shows the fastest of them closely, and all of them side by side.
        title: what was measured.
        verdict: the result in a sentence.
        facts: names and values to list below the table.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    best = fastest(reports)
    return environment.get_template("page.html").render(
        title=title,
        verdict=verdict,
        date=best.date,
        facts=facts,
        rows=[_row(summary) for summary in [*best.categories, best.overall]],
        best=f"{best.num_draft_tokens} drafts a round, {best.num_tokens} tokens a run",
        sweep_rows=[_sweep_row(report) for report in reports] if len(reports) > 1 else [],
        charts=_charts(reports, best),
        prompts=[_prompt(result) for result in best.results],
    )


def fastest(reports: Sequence[Report]) -> Report:
    """The report with the largest speed-up; the first where there is none."""
    return max(reports, key=lambda report: report.overall.speed_up.median if report.overall.speed_up else 0)


def _charts(reports: Sequence[Report], best: Report) -> list[Chart]:
    if best.overall.speed_up is None:
        return []
    found = [Chart("Speed-up by category", "Median over prompts.", Markup(charts.speed_up_by_category(best)))]
    same_length = [report for report in reports if report.num_tokens == best.num_tokens]
    if len(same_length) > 1:
        found.append(Chart("Speed-up by depth", "All prompts, the same plain runs.", Markup(charts.sweep(same_length))))
    if best.overall.speculation.drafted:
        note = "Of the drafts whose predecessors in the round were accepted."
        found.append(Chart("Acceptance by position", note, Markup(charts.acceptance_by_position(best))))
        note = "Mean over all prompts, from the first round to the last."
        found.append(Chart("Rounds over time", note, Markup(charts.rounds_over_time(best))))
    return found


def _row(summary: Summary) -> dict[str, Any]:
    return {"name": summary.category, "prompts": summary.prompts, **_figures(summary)}


def _sweep_row(report: Report) -> dict[str, Any]:
    drafts = "–" if report.memory.mtp_peak is None else report.num_draft_tokens
    return {"name": drafts, "num_tokens": report.num_tokens, **_figures(report.overall)}


def _figures(summary: Summary) -> dict[str, Any]:
    speed_up, interval, speculation = summary.speed_up, summary.speed_up_interval, summary.speculation
    return {
        "plain": f"{summary.plain_tps.median:.1f}",
        "mtp": f"{summary.mtp_tps.median:.1f}" if summary.mtp_tps else "–",
        "speed_up": f"{speed_up.median:.2f}×" if speed_up else "–",
        "interval": f"{interval.lower:.2f}–{interval.upper:.2f}" if interval else "–",
        "quartiles": f"{speed_up.lower:.2f}–{speed_up.upper:.2f}" if speed_up else "–",
        "length": f"{speculation.mean_acceptance_length:.2f}" if speculation else "–",
        "repeated": f"{summary.repeated_share:.0%}",
    }


def _prompt(result) -> dict[str, Any]:
    return {
        "category": result.category,
        "text": result.text,
        "tokens": result.prompt_tokens,
        "plain": f"{result.plain_tps:.1f}",
        "mtp": f"{result.mtp_tps:.1f}" if result.mtp else "–",
        "speed_up": f"{result.speed_up:.2f}×" if result.mtp else "–",
        "output": "–" if not result.mtp else "differs" if result.divergence else "equal",
    }
