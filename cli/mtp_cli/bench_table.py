"""The report of `mtp bench` as a table and a few lines under it."""

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mtp_cli.pair import Pair
from mtp_cli.sampling import SamplingOptions
from mtp_cli.statistics import exact_line

if TYPE_CHECKING:
    from mtp_mlx import Speculation
    from mtp_mlx.bench.report import Memory, PromptResult, Report, Spread, Summary

NOTICEABLE = 1.03  # speeds of one and the same thing differ by about this much from run to run


def print_report(report: "Report", pair: Pair, sampling: SamplingOptions) -> None:
    """Prints to stdout; without a terminal, plain text of any width."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=120)
    console.print(_table(report, box.SIMPLE_HEAD if console.is_terminal else None), "")
    if report.overall.speed_up is not None:
        console.print(f"{_verdict(report)}\n", style="bold", markup=False)
    if console.is_terminal:
        facts = Table.grid("name", "value", padding=(0, 2, 0, 0))
        for name, value in _facts(report, pair, sampling):
            facts.add_row(Text(name, "dim"), Text(value))
        console.print(facts)
    else:
        for name, value in _facts(report, pair, sampling):
            print(f"{name:<13}{value}")


def _table(report: "Report", lines: box.Box | None) -> Table:
    table = Table(box=lines, show_edge=False, pad_edge=False)
    table.add_column("category")
    names = ["prompts", "plain\ntok/s", "MTP\ntok/s", "speed-up", "quartiles", "tokens\na round", "repeated\n8-grams"]
    for name in names:
        table.add_column(name, justify="right")
    summaries = report.categories
    for summary in summaries:
        table.add_row(*_row(summary), end_section=summary is summaries[-1])
    table.add_row(*_row(report.overall), style="bold")
    return table


def _row(summary: "Summary") -> list[str]:
    row = [summary.category, str(summary.prompts), f"{summary.plain_tps.median:.1f}"]
    if summary.speed_up is None:
        row += ["–"] * 4
    else:
        speed_up = summary.speed_up
        row += [
            f"{summary.mtp_tps.median:.1f}",
            f"{speed_up.median:.2f}×",
            f"{speed_up.lower:.2f}–{speed_up.upper:.2f}",
            f"{summary.speculation.mean_acceptance_length:.2f}",
        ]
    return [*row, f"{summary.repeated_share:.0%}"]


def _verdict(report: "Report") -> str:
    speed_up = report.overall.speed_up.median
    output = "equal output" if report.sampler.is_reproducible else "equally distributed output"
    if report.diverged:
        output = "other output (see below)"
    if speed_up < NOTICEABLE:
        return f"MTP is not faster than plain decoding here: {speed_up:.2f}×, with {output}."
    return f"MTP decodes {speed_up:.2f}× as fast as plain decoding here, with {output}."


def _facts(report: "Report", pair: Pair, sampling: SamplingOptions) -> list[tuple[str, str]]:
    speculation = report.overall.speculation
    facts = [("protocol", _protocol(report, sampling))]
    if speculation is not None:
        facts.append(("accepted", _acceptance(speculation)))
    if report.memory.mtp_peak is not None:
        facts.append(("output", _equality(report, pair)))
    if report.overall.departure is not None:
        facts.append(("lenient", _lenient(report.overall)))
    if report.exact is not None:
        facts.append(("exactness", exact_line(report.exact)))
    machine = report.machine
    return [
        *facts,
        ("prefill", f"{_spread(report.prefill_tps)} tok/s"),
        ("peak memory", _memory(report.memory)),
        ("machine", f"{machine.processor}, {machine.cores} cores, {machine.system}"),
        ("computed on", f"{machine.device}, MLX {machine.mlx}, BLAS: {machine.blas}"),
    ]


def _protocol(report: "Report", sampling: SamplingOptions) -> str:
    repeats = "1 run" if report.repeats == 1 else f"{report.repeats} runs"
    drafts = f", drafts a round: {report.num_draft_tokens}" if report.memory.mtp_peak is not None else ""
    return (
        f"{sampling.describe()}, {report.num_tokens} tokens a run (stop ids ignored), {repeats} of each prompt{drafts}"
    )


def _acceptance(speculation: "Speculation") -> str:
    if not speculation.drafted:
        return "nothing was drafted, because it does not pay here"
    by_position = " · ".join(f"{rate:.0%}" for rate in speculation.acceptance_by_position)
    return f"{speculation.acceptance_rate:.0%} of the drafts; by position {by_position}"


def _lenient(summary: "Summary") -> str:
    speed_up, departure = summary.lenient_speed_up, summary.departure
    return (
        f"{speed_up.median:.2f}× plain; output may differ from the target's: {departure.share:.0%} of tokens are not "
        f"its own choice, mean KL {departure.kl:.2f} nats"
    )


def _equality(report: "Report", pair: Pair) -> str:
    if not report.sampler.is_reproducible:
        return "drawn anew in each run, from the target's own distribution (--seed draws the same tokens, and compares)"
    if not report.diverged:
        return f"equal to plain decoding's on all {len(report.results)} prompts"
    first: PromptResult = report.diverged[0]
    divergence = first.divergence
    plain, mtp = (pair.tokenizer.decode([token]) for token in (divergence.plain, divergence.mtp))
    where = f"{first.category}, token {divergence.index + 1}: plain {plain!r}, MTP {mtp!r}"
    return (
        f"DIFFERS from plain decoding's on {len(report.diverged)} of {len(report.results)} prompts; "
        f"first: {where}, logit gap {divergence.logit_gap:.1e}"
    )


def _memory(memory: "Memory") -> str:
    peaks = [f"plain {_megabytes(memory.plain_peak)}"]
    if memory.mtp_peak is not None:
        peaks.append(f"MTP {_megabytes(memory.mtp_peak)}")
    parts = [f"target {_megabytes(memory.target)}"]
    if memory.drafter:
        parts.append(f"drafter {_megabytes(memory.drafter)}")
    parts.append(f"keys and values {_megabytes(memory.key_values)}")
    return f"{', '.join(peaks)} ({', '.join(parts)})"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.2f} GB"


def _spread(spread: "Spread") -> str:
    return f"{spread.median:.1f} ({spread.lower:.1f}–{spread.upper:.1f})"
