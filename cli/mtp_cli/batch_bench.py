"""`mtp bench -b 1,2,4,8`: several sequences at once, as a table or as JSON."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from mtp_cli.console import progress_bar, status
from mtp_cli.pair import Pair
from mtp_cli.sampling import SamplingOptions
from mtp_weights.errors import MisuseError

if TYPE_CHECKING:
    from rich.table import Table

    from mtp_mlx.bench.batch_report import BatchReport, BatchResult
    from mtp_mlx.bench.measure import Workload

MOST_SIZE = 64


def parse_sizes(text: str | None) -> list[int] | None:
    """The numbers in "1,2,4,8".

    Raises:
        MisuseError: something else than numbers between 1 and `MOST_SIZE`.
    """
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(name.isascii() and name.isdigit() and len(name) <= 3 and 1 <= int(name) <= MOST_SIZE for name in names):
        raise MisuseError(f"--batch-sizes must be numbers between 1 and {MOST_SIZE}, with commas between", given=text)
    return sorted({int(name) for name in names})


BatchSizes = Annotated[
    str | None,
    typer.Option(
        "--batch-sizes", "-b", metavar="N,N…", help="Decode so many prompts at once, for each of the numbers."
    ),
]


def bench_batches(
    pair: Pair,
    workloads: "list[Workload]",
    sizes: list[int],
    sampling: SamplingOptions,
    *,
    num_tokens: int,
    repeats: int,
    as_json: bool,
) -> None:
    """Measures and prints."""
    from mtp_mlx.bench.batch import measure_batches

    with status("warming up") as warming, progress_bar("measuring") as update:

        def progress(done: int, total: int) -> None:
            warming.stop()
            update(done, total)

        report = measure_batches(
            pair.model,
            pair.drafter,
            workloads,
            sizes,
            num_tokens=num_tokens,
            repeats=repeats,
            num_draft_tokens=pair.options.num_draft_tokens,
            sampler=sampling.sampler(),
            progress=progress,
        )
    if as_json:
        print(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        _print(report)


def _print(report: "BatchReport") -> None:
    from mtp_cli.tables import new_table, stdout

    console = stdout()
    table = new_table(console)
    _fill(table, report)
    console.print(table, "")
    for name, value in _facts(report):
        console.print(f"{name:<10}{value}", markup=False)


def _fill(table: "Table", report: "BatchReport") -> None:
    headings = [
        "rows",
        "plain\ntok/s",
        "a row",
        "MTP\ntok/s",
        "a row",
        "speed-up",
        "with\nits end",
        "× MTP at\none row",
    ]
    for heading in [*headings, "rows\ndiffer"]:
        table.add_column(heading, justify="right")
    for result in report.results:
        table.add_row(*_row(result, report))


def _row(result: "BatchResult", report: "BatchReport") -> list[str]:
    plain = [f"{result.speed('plain', kind).median:.1f}" for kind in ("aggregate", "sequence")]
    differ = "–" if result.different is None else str(sum(result.different))
    if not result.mtp:
        return [str(result.rows), *plain, *["–"] * 5, differ]
    mtp = [f"{result.speed('mtp', kind).median:.1f}" for kind in ("aggregate", "sequence")]
    one = next((each for each in report.results if each.rows == 1), None)
    scaled = f"{result.speed('mtp').median / one.speed('mtp').median:.2f}×" if one else "–"
    ups = [f"{result.speed_up():.2f}×", f"{result.speed_up('whole'):.2f}×"]
    return [str(result.rows), *plain, *mtp, *ups, scaled, differ]


def _facts(report: "BatchReport") -> list[tuple[str, str]]:
    facts = [
        ("speeds", "tok/s of all rows together while all of them run; a row: from its first token to its last"),
        ("its end", "speed-up of whole runs, in whose end only the slower rows still run"),
        (
            "protocol",
            f"{report.num_tokens} tokens a row, {len(report.prompts)} prompts, {report.repeats} run(s) of each",
        ),
    ]
    if report.results[0].mtp:
        facts.append(("drafts", f"a round: {report.num_draft_tokens}"))
    for result in report.results if report.results[0].mtp else []:
        shares = " · ".join(f"{100 * share:.0f}%" for share in result.acceptance)
        facts.append(("accepted", f"of each prompt's drafts, {result.rows} at once: {shares}"))
    compared = all(result.different is not None for result in report.results)
    facts.append(
        ("output", "each row beside plain decoding of its prompt alone" if compared else "drawn anew each time")
    )
    machine = report.machine
    facts.append(("machine", f"{machine.processor}, {machine.cores} cores, MLX {machine.mlx} on {machine.device}"))
    return facts
