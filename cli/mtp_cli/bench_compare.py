"""`mtp bench compare`: what changed between two results, and whether it is more than noise."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mtp_mlx.bench.compare import Change, Comparison


def compare(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="The earlier result.", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="The later one.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Show what changed between two results of mtp bench --json."""
    from mtp_mlx.bench.compare import compare as compare_reports
    from mtp_mlx.bench.compare import read_reports

    found = compare_reports(read_reports(before), read_reports(after))
    if as_json:
        print(json.dumps([comparison.to_dict() for comparison in found], ensure_ascii=False))
        return
    for comparison in found:
        _print(comparison)


def _print(comparison: "Comparison") -> None:
    from mtp_cli.tables import new_table, stdout

    console = stdout()
    print(
        f"{comparison.num_draft_tokens} drafts a round, {comparison.num_tokens} tokens a run, "
        f"{comparison.prompts} prompts that both have"
    )
    for name, before, after in comparison.other_conditions:
        console.print(f"not the same: {name}: {before} → {after}", markup=False, soft_wrap=True)
    table = new_table(console)
    table.add_column("")
    for name in ("A", "B", "B ÷ A", "95 % CI", "verdict"):
        table.add_column(name, justify="left" if name == "verdict" else "right")
    for change in comparison.changes:
        table.add_row(*_row(change), style="bold" if change.is_more_than_noise else "")
    console.print(table)
    if comparison.other_outputs:
        print(f"{comparison.other_outputs} of {comparison.prompts} prompts have another output now")
    print()


def _row(change: "Change") -> list[str]:
    interval = "–" if change.interval is None else f"{change.interval.lower:.2f}–{change.interval.upper:.2f}"
    figures = [f"{change.before:.3g}", f"{change.after:.3g}", f"{change.ratio:.2f}×", interval]
    return [change.name, *figures, _verdict(change)]


def _verdict(change: "Change") -> str:
    if not change.is_more_than_noise:
        return "within noise"
    return "more" if change.ratio > 1 else "less"
