"""The options of `mtp train`; mlx-lm's names where it has them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mtp_cli import options
from mtp_weights.errors import MisuseError, UserError


def read_config_file(context: typer.Context, file: Path | None) -> Path | None:
    """Makes what a YAML file says the defaults of the other options; those that are typed win."""
    if file is None:
        return None
    import yaml  # mlx-lm brings it

    try:
        values = yaml.safe_load(file.read_text("utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(
            "cannot read the configuration file", given=f"{file}: {' '.join(str(error).split())}"
        ) from error
    known = {parameter.name for parameter in context.command.params} - {"config"}
    _check_names(values, known, file)
    context.default_map = {**(context.default_map or {}), **values}
    return file


def _check_names(values: Any, known: set[str], file: Path) -> None:
    if not isinstance(values, dict):
        raise MisuseError("a configuration file holds options, one on each line", given=file, fix="iters: 1000")
    unknown = sorted(str(name) for name in values if name not in known)
    if unknown:
        raise MisuseError(
            f"no such option in the configuration file: {', '.join(unknown)}",
            given=file,
            fix=f"there are {', '.join(sorted(known))}",
        )


def _check_val_batches(value: int) -> int:
    if value == 0 or value < -1:
        raise MisuseError("--val-batches must be positive, or -1 for all there are", given=value)
    return value


def _size(name: str, help: str) -> Any:
    check = options.positive(name)
    return typer.Option(name, metavar="N", help=help, callback=lambda value: None if value is None else check(value))


Model = Annotated[
    str,
    typer.Option("--model", metavar="NAME", help="The target, frozen: a folder, a repository, or 'demo'."),
]
Data = Annotated[
    Path,
    typer.Option("--data", metavar="PATH", help="Text: .txt, .md, .jsonl, or a folder with train.jsonl, valid.jsonl."),
]
Output = Annotated[Path, typer.Option("--output", metavar="DIR", help="The folder for the drafter.")]
Init = Annotated[
    str | None,
    typer.Option("--init", metavar="NAME", help="A drafter to go on with, instead of a new one."),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="YAML with any of these options, e.g. 'iters: 500'.",
        is_eager=True,
        callback=read_config_file,
    ),
]
SelfDistill = Annotated[
    str,
    typer.Option(
        metavar="WAY",
        help="What is drafted from each place: 'follow' the target's own choices, 'read' the text as it is, or "
        "'generate': the target goes on with the prompts first.",
    ),
]
Iters = Annotated[int, typer.Option(metavar="N", help="Steps.")]
BatchSize = Annotated[int, typer.Option(metavar="N", help="Rows of text a step.")]
MaxSeqLength = Annotated[int, typer.Option(metavar="N", help="Tokens a row.")]
LearningRate = Annotated[float, typer.Option(metavar="X", help="Of the matrices, at its highest.")]
NumDraftTokens = Annotated[int, typer.Option("--num-draft-tokens", metavar="N", help="Draft steps to train.")]
TopK = Annotated[
    int, typer.Option("--top-k", metavar="N", help="Of the target's likeliest tokens, so many are learned.")
]
DistributionWeight = Annotated[
    float,
    typer.Option(metavar="X", help="Share of the loss for their probabilities; the rest is the target's choice."),
]
Temperature = Annotated[float, typer.Option("--temp", metavar="X", help="For what is sampled with 'generate'.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Of everything random.")]
HiddenSize = Annotated[
    int | None, _size("--hidden-size", "A new drafter's width (default: by the target, as the next ones).")
]
NumLayers = Annotated[int | None, _size("--num-layers", "Its layers.")]
IntermediateSize = Annotated[int | None, _size("--intermediate-size", "Its width within a layer.")]
NumAttentionHeads = Annotated[int | None, _size("--num-attention-heads", "Its heads a layer.")]
NumCentroids = Annotated[
    int | None, typer.Option(metavar="N", help="Its clusters of the vocabulary; 0 for a full head.")
]
TopClusters = Annotated[int | None, _size("--top-clusters", "Its clusters that are scored.")]
ValBatches = Annotated[
    int, typer.Option(metavar="N", help="Batches to validate with; -1 for all there are.", callback=_check_val_batches)
]
StepsPerReport = Annotated[
    int, typer.Option(metavar="N", help="Steps between reports.", callback=options.positive("--steps-per-report"))
]
StepsPerEval = Annotated[
    int, typer.Option(metavar="N", help="Steps between validations.", callback=options.positive("--steps-per-eval"))
]
SaveEvery = Annotated[
    int, typer.Option(metavar="N", help="Steps between checkpoints.", callback=options.positive("--save-every"))
]
CacheDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where the target's view of the text is kept (default: in the output folder)."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what memory, disk and time it would take.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
