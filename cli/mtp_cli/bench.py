"""`mtp bench`: how much faster MTP is than plain decoding, on this machine."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mtp_cli import bench_options, options
from mtp_cli.batch_bench import BatchSizes, bench_batches, parse_sizes
from mtp_cli.bench_compare import compare
from mtp_cli.bench_estimate import print_estimate
from mtp_cli.bench_output import JSON, TABLE, print_result
from mtp_cli.bench_report import write_report
from mtp_cli.console import progress_bar, status
from mtp_cli.pair import Pair, PairOptions, drafters_of, load_pair
from mtp_cli.sampling import SamplingOptions
from mtp_weights.errors import MisuseError

if TYPE_CHECKING:
    from mtp_mlx.bench.measure import Progress, Workload
    from mtp_mlx.bench.report import Report
    from mtp_mlx.models.drafter import Drafter

ESTIMATE_CONTEXT = "512"

bench_app = typer.Typer(invoke_without_command=True)
bench_app.command()(compare)


@bench_app.callback()
def bench(
    context: typer.Context,
    suite: bench_options.Suite = None,
    prompts: bench_options.Prompts = None,
    limit: bench_options.Limit = 5,
    prompt_tokens: bench_options.PromptTokens = None,
    num_tokens: bench_options.NumTokens = "128",
    ignore_eos: bench_options.IgnoreEos = True,
    repeats: bench_options.Repeats = 1,
    delay: bench_options.Delay = 0.0,
    batch_sizes: BatchSizes = None,
    output: bench_options.Output = TABLE,
    as_json: bench_options.AsJson = False,
    report: bench_options.Report = None,
    estimate: bench_options.Estimate = None,
    q_bits: bench_options.QBits = None,
    model: options.Model = "demo",
    draft_model: options.DraftModel = "auto",
    drafters: bench_options.Drafters = None,
    no_draft: options.NoDraft = False,
    num_draft_tokens: bench_options.Depths = "auto",
    draft_position: options.DraftPosition = None,
    adapter_path: options.AdapterPath = None,
    exact: options.Exact = False,
    force: options.Force = False,
    temp: options.BenchTemperature = 0.0,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    seed: options.Seed = None,
    lenient: options.Lenient = False,
) -> None:
    """Measure how much faster MTP is than plain decoding."""
    if context.invoked_subcommand is not None:
        return
    if estimate is not None:
        others = {"batch_sizes": batch_sizes, "report": report, "adapter_path": adapter_path, "drafters": drafters}
        _check_estimate(suite=suite, prompts=prompts, **others)
        as_json = as_json or _json_for("--estimate", output)
        length = bench_options.numbers(prompt_tokens or ESTIMATE_CONTEXT, "--prompt-tokens")[0]
        print_estimate(estimate, None if no_draft else draft_model, q_bits, length, as_json)
        return
    if q_bits is not None:
        raise MisuseError("--q-bits goes with --estimate", fix="mtp convert quantizes a checkpoint")
    if suite is not None and prompts is not None:
        raise MisuseError("--suite and --prompts exclude each other", fix="give one of them")
    names = bench_options.drafters(drafters, draft_model, no_draft)
    if lenient and no_draft:
        raise MisuseError("--lenient needs a drafter", fix="leave out --no-draft")
    depths, lengths = bench_options.depths(num_draft_tokens), bench_options.numbers(num_tokens, "--num-tokens")
    sizes = parse_sizes(batch_sizes)
    if sizes is not None:
        as_json = as_json or _json_for("--batch-sizes", output)
        _check_batches(lenient, exact, ignore_eos, len(depths) + len(lengths) + len(names) > 3, report is not None)
    rest = exact, force, adapter_path, draft_position
    # Every depth is checked; which pair is loaded does not depend on it.
    pair_options, *_ = [PairOptions.of(model, names[0], no_draft, str(depth), *rest) for depth in depths]
    sampling = SamplingOptions(temp, top_p, top_k, min_p, seed=seed).check()
    choice = Choice(_suites(suite), prompts, limit, prompt_tokens and bench_options.numbers(prompt_tokens, "-p"))
    pair = load_pair(pair_options)
    drafting = drafters_of(pair, names[1:])
    sampling = sampling.of_model(pair.model, pair.tokenizer)
    workloads = choice.workloads(pair)
    if sizes is not None:
        bench_batches(pair, workloads, sizes, sampling, num_tokens=lengths[0], repeats=repeats, as_json=as_json)
        return
    measured = Measured(depths, lengths, ignore_eos, repeats, delay, lenient, exact)
    reports = measured.reports(pair, drafting, workloads, sampling)
    if report is not None:
        write_report(report, reports, pair, sampling)
    print_result(JSON if as_json else output, reports, pair, sampling)


def _check_estimate(**options: object) -> None:
    """Refuses options that would have no effect on an estimate."""
    given = next((name for name, value in options.items() if value is not None), None)
    if given is not None:
        raise MisuseError(f"--{given.replace('_', '-')} does not go with --estimate", fix="leave one out")


def _json_for(option: str, output: str) -> bool:
    """Whether it is to be JSON, where nothing else but a table is possible."""
    if output not in (TABLE, JSON):
        raise MisuseError(f"{option} prints a table or JSON only", given=output, fix="use -o json")
    return output == JSON


def _check_batches(lenient: bool, exact: bool, ignore_eos: bool, several: bool, page: bool) -> None:
    """Refuses what `--batch-sizes` cannot do."""
    if exact:
        problem = "--exact is of one sequence: in a batch, how a row is rounded depends on how many others there are"
        raise MisuseError(problem, fix="leave out --batch-sizes")
    if lenient or not ignore_eos:
        other = "--lenient" if lenient else "--stop-at-eos"
        raise MisuseError(f"--batch-sizes does not go with {other}", fix="leave one out")
    if several:
        raise MisuseError(
            "--batch-sizes needs one drafter, one --num-draft-tokens and one --num-tokens", fix="give one of each"
        )
    if page:
        raise MisuseError("--batch-sizes writes no page", fix="leave out --report")


@dataclass(frozen=True)
class Choice:
    """Which prompts to measure on."""

    suites: list[str] | None
    file: Path | None
    limit: int
    lengths: list[int] | None

    def workloads(self, pair: Pair) -> "list[Workload]":
        from mtp_mlx.bench.measure import Workload
        from mtp_mlx.bench.prompts import default_prompts, of_length, read_prompts, select, suites

        if self.file is not None:
            prompts = read_prompts(self.file)
        else:
            prompts = default_prompts(pair.model) if self.suites is None else suites(self.suites)
        if self.lengths is None:
            chosen = select(prompts, self.limit)
            return [Workload(prompt.category, prompt.text, prompt.ids(pair.tokenizer)) for prompt in chosen]
        return [
            Workload(f"{length} tokens", pair.tokenizer.decode(ids[:40]), ids)
            for length in self.lengths
            for ids in of_length(prompts, pair.tokenizer, length, self.limit)
        ]


@dataclass(frozen=True)
class Measured:
    """What to measure on each prompt."""

    depths: list[int | str]
    lengths: list[int]
    ignore_eos: bool
    repeats: int
    delay: float
    lenient: bool
    exact: bool

    def reports(
        self,
        pair: Pair,
        drafters: "Mapping[str, Drafter]",
        workloads: "Sequence[Workload]",
        sampling: SamplingOptions,
    ) -> "list[Report]":
        """A report for each length of output, each drafter and each depth."""
        from mtp_mlx.bench.measure import measure_drafters

        found = []
        for length in self.lengths:
            with _progress() as progress:
                found += measure_drafters(
                    pair.model,
                    drafters,
                    workloads,
                    self.depths,
                    num_tokens=length,
                    stop_ids=() if self.ignore_eos else pair.tokenizer.eos_token_ids,
                    repeats=self.repeats,
                    sampler=sampling.sampler(),
                    lenient=self.lenient,
                    exact=self.exact,
                    delay=self.delay,
                    progress=progress,
                )
        return found


def _suites(text: str | None) -> list[str] | None:
    if text is None:
        return None
    from mtp_mlx.bench.prompts import SUITES, suites

    names = list(SUITES) if text == "all" else list(dict.fromkeys(name.strip() for name in text.split(",")))
    suites(names)  # refuses unknown ones before a model is loaded
    return names


@contextmanager
def _progress() -> "Iterator[Progress]":
    with status("warming up") as warming, progress_bar("measuring") as update:

        def progress(done: int, total: int) -> None:
            warming.stop()
            update(done, total)

        yield progress
