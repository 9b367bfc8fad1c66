"""The charts of the page, drawn by matplotlib as SVG.

Colours are drawn as those of the light theme and then replaced by CSS variables, so that one drawing serves both themes
and follows the reader's.
"""

from collections.abc import Sequence
from io import StringIO
from math import inf

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtp_mlx.bench.report import Report
from mtp_mlx.bench.rounds import over_time

# Names of CSS variables, and their values in the light theme; each value must be unlike the others.
INK, FAINT, PLAIN, MTP, ACCENT = "#1f2429", "#d5d9de", "#8a94a0", "#1668c7", "#c2571a"
VARIABLES = {INK: "--ink", FAINT: "--faint", PLAIN: "--plain", MTP: "--mtp", ACCENT: "--accent"}
STRETCHES = 24  # of a generation, in the chart of rounds over time
_STYLE = {
    "svg.fonttype": "none",  # text stays text: it takes the page's font, and can be searched and read aloud
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


def speed_up_by_category(report: Report) -> str:
    """Bars with 95 % intervals, beside a line where MTP is as fast as plain decoding."""
    summaries = [*report.categories, report.overall][::-1]
    with rc_context(_STYLE):
        figure, axes = _axes(0.36 * len(summaries) + 0.9)
        values = [summary.speed_up.median for summary in summaries]
        colors = [ACCENT if summary.category == "all" else MTP for summary in summaries]
        axes.barh(range(len(values)), values, color=colors, height=0.62)
        for n, summary in enumerate(summaries):
            interval, end = summary.speed_up_interval, values[n]
            if interval is not None:
                axes.plot([interval.lower, interval.upper], [n, n], color=INK, linewidth=1.4)
                end = max(end, interval.upper)
            axes.annotate(f"{values[n]:.2f}×", (end, n), (5, 0), textcoords="offset points", va="center")
        axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (3, 3)))
        axes.set_yticks(range(len(values)), [summary.category for summary in summaries])
        axes.set_xlim(0, max(1.2, max(_ends(summaries)) * 1.15))
        axes.set_xlabel("times as fast as plain decoding (line: 95 % interval)")
        axes.grid(axis="x")
        return _svg(figure)


def acceptance_by_position(report: Report) -> str:
    """How often the draft at each place of the round was accepted, when those before it were."""
    rates = report.overall.speculation.acceptance_by_position
    with rc_context(_STYLE):
        figure, axes = _axes(2.6)
        places = range(1, len(rates) + 1)
        bars = axes.bar(places, [100 * rate for rate in rates], color=MTP, width=0.62)
        axes.bar_label(bars, [f"{rate:.0%}" for rate in rates], padding=2)
        axes.set_xticks(places)
        axes.set_ylim(0, 110)
        axes.set_yticks(range(0, 101, 25))
        axes.set_xlabel("place of the draft in its round")
        axes.set_ylabel("accepted, %")
        axes.grid(axis="y")
        return _svg(figure)


def rounds_over_time(report: Report) -> str:
    """Drafts and tokens a round from the beginning of a generation to its end."""
    stretches = over_time(report.mtp_runs, STRETCHES)
    along = [100 * (n + 0.5) / len(stretches) for n in range(len(stretches))]
    with rc_context(_STYLE):
        figure, axes = _axes(2.6)
        axes.plot(along, [each.accepted + 1 for each in stretches], color=MTP, linewidth=2, label="tokens a round")
        drafts = [each.drafted for each in stretches]
        axes.plot(along, drafts, color=ACCENT, linewidth=2, linestyle=(0, (4, 2)), label="drafts a round (k)")
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 1.25 * max(*drafts, *(each.accepted + 1 for each in stretches)))
        axes.set_xlabel("% of the rounds of a generation")
        axes.grid(axis="y")
        axes.legend(loc="upper left", ncols=2)
        return _svg(figure)


def sweep(reports: Sequence[Report]) -> str:
    """Speed by the number of drafts a round, with 95 % intervals of the speed-up; "auto" comes last."""
    ordered = sorted(reports, key=lambda report: inf if report.num_draft_tokens == "auto" else report.num_draft_tokens)
    with rc_context(_STYLE):
        figure, axes = _axes(2.8)
        for n, report in enumerate(ordered):
            overall = report.overall
            color = ACCENT if report.num_draft_tokens == "auto" else MTP
            axes.bar(n, overall.speed_up.median, color=color, width=0.62)
            end = overall.speed_up.median
            if overall.speed_up_interval is not None:
                interval = overall.speed_up_interval
                axes.plot([n, n], [interval.lower, interval.upper], color=INK, linewidth=1.4)
                end = max(end, interval.upper)
            label = f"{overall.speed_up.median:.2f}×"
            axes.annotate(label, (n, end), (0, 3), textcoords="offset points", ha="center")
        axes.axhline(1, color=INK, linewidth=1, linestyle=(0, (3, 3)))
        axes.set_xticks(range(len(ordered)), [str(report.num_draft_tokens) for report in ordered])
        axes.set_ylim(0, max(1.2, max(_ends([report.overall for report in ordered])) * 1.15))
        axes.set_xlabel("drafts a round")
        axes.set_ylabel("times plain decoding")
        axes.grid(axis="y")
        return _svg(figure)


def _ends(summaries) -> list[float]:
    """How far the bars or the intervals on them reach."""
    return [max(s.speed_up.median, s.speed_up_interval.upper if s.speed_up_interval else 0) for s in summaries]


def _axes(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.4, height), layout="constrained")
    return figure, figure.add_subplot()


def _svg(figure: Figure) -> str:
    """The drawing as an element for a page, as wide as there is room."""
    out = StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    return svg
