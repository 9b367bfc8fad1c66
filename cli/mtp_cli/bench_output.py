"""The formats that `mtp bench` writes its result in."""

import csv
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mtp_cli.pair import Pair
from mtp_cli.sampling import SamplingOptions
from mtp_weights.errors import MisuseError

if TYPE_CHECKING:
    from mtp_mlx.bench.report import Report

TABLE, JSON = "table", "json"
FORMATS = (TABLE, "md", "csv", JSON, "jsonl")


def check_format(name: str) -> str:
    """Refuses a format that there is not."""
    if name not in FORMATS:
        raise MisuseError("no such output format", given=name, fix=f"there are {', '.join(FORMATS)}")
    return name


def print_result(name: str, reports: "Sequence[Report]", pair: Pair, sampling: SamplingOptions) -> None:
    """Prints the reports to stdout in the format called `name`."""
    from mtp_cli.bench_table import print_markdown, print_reports

    writers: dict[str, Callable[[], None]] = {
        TABLE: lambda: print_reports(reports, pair, sampling),
        "md": lambda: print_markdown(reports),
        "csv": lambda: _print_csv(_rows(reports)),
        JSON: lambda: print(json.dumps(as_json(reports), ensure_ascii=False)),
        "jsonl": lambda: _print_lines(_rows(reports)),
    }
    writers[name]()


def as_json(reports: "Sequence[Report]") -> dict[str, Any]:
    """One report as it is; of several, all under "reports"."""
    each = [report.to_dict() for report in reports]
    return each[0] if len(each) == 1 else {"reports": each}


def _rows(reports: "Sequence[Report]") -> list[dict[str, Any]]:
    from mtp_mlx.bench.rows import rows

    return rows(reports)


def _print_csv(rows: list[dict[str, Any]]) -> None:
    writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _print_lines(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))
