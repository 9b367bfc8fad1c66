"""What a report of `mtp bench` says below its table: how it was measured, and the figures that are no columns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mtp_cli.pair import Pair
from mtp_cli.sampling import SamplingOptions
from mtp_cli.statistics import exact_line

if TYPE_CHECKING:
    from mtp_mlx import Speculation
    from mtp_mlx.bench.instruments import Energy, Phases
    from mtp_mlx.bench.report import Memory, Report
    from mtp_mlx.bench.roofline import Roofline
    from mtp_mlx.bench.runs import PromptResult, RoundCounts
    from mtp_mlx.bench.spread import Spread
    from mtp_mlx.bench.summary import Summary

NOTICEABLE = 1.03  # speeds of one and the same thing differ by about this much from run to run


def verdict(report: "Report") -> str:
    """The result in a sentence."""
    speed_up, interval = report.overall.speed_up.median, report.overall.speed_up_interval
    output = "equal output" if report.sampler.is_reproducible else "equally distributed output"
    if report.diverged:
        output = "other output (see below)"
    if speed_up < NOTICEABLE:
        return f"MTP is not faster than plain decoding here: {speed_up:.2f}×, with {output}."
    sure = "" if interval is None else f" (95 % CI {interval.lower:.2f}–{interval.upper:.2f})"
    return f"MTP decodes {speed_up:.2f}× as fast as plain decoding here{sure}, with {output}."


def facts(report: "Report", pair: Pair, sampling: SamplingOptions) -> list[tuple[str, str]]:
    """Names and values of what there is to say of one report."""
    found = [("protocol", _protocol(report, sampling))]
    if report.overall.speculation is not None:
        found += _speculation(report)
    if report.memory.mtp_peak is not None:
        found.append(("output", _equality(report, pair)))
    if report.overall.departure is not None:
        found.append(("lenient", _lenient(report.overall)))
    if report.exact is not None:
        found.append(("exactness", exact_line(report.exact)))
    found += [
        ("prefill", f"{_spread(report.prefill_tps)} tok/s, first token after {_first_token(report)}"),
        ("round", _phases(report.phases)),
        ("bandwidth", _roofline(report.roofline)),
    ]
    if report.energy is not None:
        found.append(("energy", _energy(report.energy)))
    return [*found, ("peak memory", _memory(report.memory)), *machine_facts(report)]


def machine_facts(report: "Report") -> list[tuple[str, str]]:
    """What it was measured on."""
    machine = report.machine
    return [
        ("machine", f"{machine.processor}, {machine.cores} cores, {machine.system}"),
        ("computed on", f"{machine.device}, MLX {machine.mlx}, BLAS: {machine.blas}"),
    ]


def _protocol(report: "Report", sampling: SamplingOptions) -> str:
    repeats = "1 run" if report.repeats == 1 else f"{report.repeats} runs"
    drafts = f", drafts a round: {report.num_draft_tokens}" if report.memory.mtp_peak is not None else ""
    ends = (
        f"up to {report.num_tokens} tokens a run"
        if report.stops
        else f"{report.num_tokens} tokens a run (stop ids ignored)"
    )
    return f"{sampling.describe()}, {ends}, {repeats} of each prompt in random order{drafts}"


def _speculation(report: "Report") -> list[tuple[str, str]]:
    from mtp_mlx.bench.rounds import over_time, shares_by_accepted

    speculation = report.overall.speculation
    found = [("accepted", acceptance(speculation))]
    if speculation.drafted:
        found.append(("rounds", _by_accepted(shares_by_accepted(report.mtp_runs))))
        found.append(("over time", _over_time(over_time(report.mtp_runs))))
    return found


def acceptance(speculation: "Speculation") -> str:
    """How many drafts were accepted, in all and at each place of the round."""
    if not speculation.drafted:
        return "nothing was drafted, because it does not pay here"
    by_position = " · ".join(f"{rate:.0%}" for rate in speculation.acceptance_by_position)
    return f"{speculation.acceptance_rate:.0%} of the drafts; by position {by_position}"


def _by_accepted(shares: Sequence[float]) -> str:
    return "accepted " + ", ".join(f"{count} in {share:.0%}" for count, share in enumerate(shares))


def _over_time(stretches: "Sequence[RoundCounts]") -> str:
    drafts = " → ".join(f"{stretch.drafted:.1f}" for stretch in stretches)
    tokens = " → ".join(f"{stretch.accepted + 1:.1f}" for stretch in stretches)
    return f"drafts a round {drafts}; tokens a round {tokens}"


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


def _first_token(report: "Report") -> str:
    first = report.first_token_seconds
    return f"{first.median * 1e3:.0f} ms ({first.lower * 1e3:.0f}–{first.upper * 1e3:.0f})"


def _phases(phases: "Phases") -> str:
    parts = {"draft": phases.draft, "verify": phases.verify, "accept": phases.accept, "host": phases.host}
    shares = ", ".join(f"{name} {seconds / phases.total:.0%}" for name, seconds in parts.items())
    return f"{shares} of {phases.total * 1e3:.1f} ms (runs of their own, each phase waited for)"


def _roofline(roofline: "Roofline") -> str:
    shares = f"plain {roofline.plain:.0%}" + ("" if roofline.mtp is None else f", MTP {roofline.mtp:.0%}")
    cached = "; above 100%: weights stay in caches" if max(roofline.plain, roofline.mtp or 0) > 1 else ""
    return f"{shares} of {roofline.bandwidth / 1e9:.1f} GB/s goes into reading weights{cached}"


def _energy(energy: "Energy") -> str:
    mtp = "" if energy.mtp is None else f", MTP {energy.mtp:.2f}"
    return f"plain {energy.plain:.2f}{mtp} joules a token, prefill included"


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
