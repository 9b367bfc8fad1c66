"""`mtp bench`: how much faster MTP is than plain decoding, on this machine."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtp_cli import options
from mtp_cli.batch_bench import BatchSizes, bench_batches, parse_sizes
from mtp_cli.bench_table import print_report
from mtp_cli.console import progress_bar, status
from mtp_cli.pair import Pair, PairOptions, load_pair
from mtp_cli.sampling import SamplingOptions
from mtp_weights.errors import MisuseError

if TYPE_CHECKING:
    from mtp_mlx.bench.measure import Workload


def bench(
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="Your own prompts: one on each line, or JSON objects (.jsonl)."),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(metavar="N", help="Most prompts of each category.", callback=options.positive("--limit")),
    ] = 5,
    num_tokens: Annotated[
        int,
        typer.Option(
            "--num-tokens", "-n", metavar="N", help="Tokens of each run.", callback=options.positive("--num-tokens")
        ),
    ] = 128,
    repeats: Annotated[
        int,
        typer.Option(metavar="N", help="Runs of each prompt and way.", callback=options.positive("--repeats")),
    ] = 1,
    batch_sizes: BatchSizes = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with every run.")] = False,
    model: options.Model = "demo",
    draft_model: options.DraftModel = "auto",
    no_draft: options.NoDraft = False,
    num_draft_tokens: options.NumDraftTokens = "auto",
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
    pair_options = PairOptions.of(
        model, draft_model, no_draft, num_draft_tokens, exact, force, adapter_path, draft_position
    )
    if lenient and no_draft:
        raise MisuseError("--lenient needs a drafter", fix="leave out --no-draft")
    sizes = parse_sizes(batch_sizes)
    if sizes is not None and (lenient or exact):
        raise MisuseError("--batch-sizes goes with neither --lenient nor --exact", fix="leave one out")
    sampling = SamplingOptions(temp, top_p, top_k, min_p, seed=seed).check()
    pair = load_pair(pair_options)
    sampling = sampling.of_model(pair.model)
    from mtp_mlx.bench.measure import measure

    workloads = _workloads(pair, prompts, limit)
    if sizes is not None:
        bench_batches(pair, workloads, sizes, sampling, num_tokens=num_tokens, repeats=repeats, as_json=as_json)
        return
    with status("warming up") as warming, progress_bar("measuring") as update:

        def progress(done: int, total: int) -> None:
            warming.stop()
            update(done, total)

        report = measure(
            pair.model,
            pair.drafter,
            workloads,
            num_tokens=num_tokens,
            repeats=repeats,
            num_draft_tokens=pair.options.num_draft_tokens,
            sampler=sampling.sampler(),
            lenient=lenient,
            exact=exact,
            progress=progress,
        )
    if as_json:
        print(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        print_report(report, pair, sampling)


def _workloads(pair: Pair, file: Path | None, limit: int) -> "list[Workload]":
    from mtp_mlx.bench.measure import Workload
    from mtp_mlx.bench.prompts import default_prompts, read_prompts, select

    prompts = default_prompts(pair.model) if file is None else read_prompts(file)
    chosen = select(prompts, limit)
    return [Workload(prompt.category, prompt.text, prompt.ids(pair.tokenizer)) for prompt in chosen]
