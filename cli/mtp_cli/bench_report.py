"""`mtp bench --report`: one HTML page."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mtp_cli.bench_facts import facts, verdict
from mtp_cli.console import note
from mtp_cli.pair import Pair
from mtp_cli.sampling import SamplingOptions
from mtp_weights.errors import UserError

if TYPE_CHECKING:
    from mtp_mlx.bench.report import Report


def check_report(file: Path | None) -> Path | None:
    """Refuses, before anything is measured, a page that could not be drawn or written in the end."""
    if file is None:
        return None
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError(
            "--report needs a package that is not installed", given=error.name, fix="pip install 'mtp-mlx[report]'"
        ) from error
    if file.is_dir() or not file.parent.is_dir():
        raise UserError("--report must name a file in a folder that exists", given=file)
    return file


def write_report(file: Path, reports: "Sequence[Report]", pair: Pair, sampling: SamplingOptions) -> None:
    """Writes the page and says where it is."""
    from mtp_mlx.bench.page import render_page
    from mtp_mlx.bench.page.render import fastest

    best = fastest(reports)
    said = verdict(best) if best.overall.speed_up else f"{best.overall.plain_tps.median:.1f} tokens a second"
    page = render_page(reports, f"{pair.options.model} on {best.machine.processor}", said, facts(best, pair, sampling))
    try:
        file.write_text(page, "utf-8")
    except OSError as error:
        raise UserError("cannot write the report", given=f"{file}: {error.strerror}") from error
    note(f"report: {file}")
