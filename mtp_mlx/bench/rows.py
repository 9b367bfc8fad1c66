"""Reports as flat rows, for tables and programs: one for each category and for all prompts together."""

from collections.abc import Iterator, Sequence
from typing import Any

from mtp_mlx.bench.report import Report
from mtp_mlx.bench.summary import Summary


def rows(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """All rows of all reports, with the same keys in each; None where something was not measured."""
    return [row for report in reports for row in _rows(report)]


def _rows(report: Report) -> Iterator[dict[str, Any]]:
    for summary in [*report.categories, report.overall]:
        yield {**_conditions(report), **_figures(summary), **_of_the_whole(report)}


def _conditions(report: Report) -> dict[str, Any]:
    machine = report.machine
    return {
        "date": report.date,
        "model": report.model,
        "drafter": report.drafter,
        "processor": machine.processor,
        "device": machine.device,
        "mlx": machine.mlx,
        "num_tokens": report.num_tokens,
        "num_draft_tokens": report.num_draft_tokens,
        "temp": report.sampler.temp,
        "repeats": report.repeats,
    }


def _figures(summary: Summary) -> dict[str, Any]:
    speed_up, interval, speculation = summary.speed_up, summary.speed_up_interval, summary.speculation
    return {
        "category": summary.category,
        "prompts": summary.prompts,
        "plain_tps": summary.plain_tps.median,
        "mtp_tps": summary.mtp_tps and summary.mtp_tps.median,
        "speed_up": speed_up and speed_up.median,
        "speed_up_low": interval and interval.lower,
        "speed_up_high": interval and interval.upper,
        "mean_acceptance_length": speculation and speculation.mean_acceptance_length,
        "acceptance_rate": speculation and speculation.acceptance_rate,
        "repeated_share": summary.repeated_share,
    }


def _of_the_whole(report: Report) -> dict[str, Any]:
    memory, energy = report.memory, report.energy
    return {
        "diverged": len(report.diverged),
        "prefill_tps": report.prefill_tps.median,
        "first_token_seconds": report.first_token_seconds.median,
        "weight_bytes": memory.target + memory.drafter,
        "plain_peak_bytes": memory.plain_peak,
        "mtp_peak_bytes": memory.mtp_peak,
        "plain_bandwidth_share": report.roofline.plain,
        "mtp_bandwidth_share": report.roofline.mtp,
        "plain_joules_per_token": energy and energy.plain,
        "mtp_joules_per_token": energy and energy.mtp,
    }
