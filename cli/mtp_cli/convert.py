"""`mtp convert`: quantizes or dequantizes a checkpoint, or changes its dtype; options as `mlx_lm.convert` has them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtp_cli import options
from mtp_cli.console import note, progress_bar, status
from mtp_cli.download import bring
from mtp_cli.statistics import speculation_line
from mtp_weights.errors import MisuseError

if TYPE_CHECKING:
    from mtp_mlx import Speculation
    from mtp_mlx.convert import Options, Result


def convert(
    hf_path: Annotated[
        str,
        typer.Option(
            "--hf-path", "--model", metavar="NAME", help="What to convert: a folder, a repository or a .gguf file."
        ),
    ],
    mlx_path: Annotated[
        Path, typer.Option("--mlx-path", metavar="DIR", help="The folder to write; it must be new or empty.")
    ] = Path("mlx_model"),
    quantize: Annotated[bool, typer.Option("--quantize", "-q", help="Quantize.")] = False,
    q_bits: Annotated[int | None, typer.Option(metavar="N", help="Bits a weight: 2, 3, 4, 5, 6 or 8.")] = None,
    q_group_size: Annotated[int | None, typer.Option(metavar="N", help="Weights that share a scale.")] = None,
    q_mode: Annotated[str, typer.Option(metavar="MODE", help="affine, mxfp4, nvfp4 or mxfp8.")] = "affine",
    quant_predicate: Annotated[
        str | None,
        typer.Option(metavar="RECIPE", help="Two widths: mixed_2_6, mixed_3_4, mixed_3_6 or mixed_4_6."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="float16, bfloat16 or float32, for what is not quantized.")
    ] = None,
    dequantize: Annotated[
        bool, typer.Option("--dequantize", "-d", help="Turn a quantized model into one that is not.")
    ] = False,
    revision: Annotated[str | None, typer.Option(metavar="REV", help="Branch, tag or commit of a repository.")] = None,
    drafter: Annotated[
        bool, typer.Option("--drafter", help="Convert the drafter that belongs to the target NAME instead.")
    ] = False,
    measure: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Decode with the other half of the pair, the drafter ('auto') or the target, and report how many "
            "drafts are accepted before and after.",
        ),
    ] = None,
    num_draft_tokens: Annotated[
        int,
        typer.Option(
            metavar="N", help="Drafts a round, for --measure.", callback=options.positive("--num-draft-tokens")
        ),
    ] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Quantize a model or a drafter, or undo it; mtp and mlx-lm load the result."""
    from mtp_mlx.convert import Options

    wanted = Options(quantize, q_bits, q_group_size, q_mode, quant_predicate, dtype, dequantize)
    if _is_gguf(hf_path) and (revision or drafter or measure):
        raise MisuseError("a GGUF file has no revision, no drafter, and is not decoded with", given=hf_path)
    name, source = _source(hf_path, revision, drafter)
    if measure == "auto":
        _check_target(source)
    result = _convert(name, source, mlx_path, wanted)
    acceptance = {} if measure is None else _measure(source, mlx_path, measure, num_draft_tokens)
    if as_json:
        print(json.dumps(_to_dict(result, acceptance)))
        return
    print(result.folder)
    note(f"{result.bits_per_weight:.2f} bits a weight; the conversion took {result.peak_memory / 1e9:.2f} GB of memory")
    for when, speculation in acceptance.items():
        note(f"{when}: {speculation_line(speculation)}")


def _source(name: str, revision: str | None, drafter: bool) -> tuple[str, Path]:
    """The name of what is to be converted, and where it is."""
    if _is_gguf(name):
        return name, Path(name).expanduser()
    if not drafter:
        return name, bring(name, revision)
    from mtp_mlx.models.registry import target_config
    from mtp_weights.pairs import choose_drafter
    from mtp_weights.read import read_config

    if revision is not None:
        raise MisuseError("a revision is the target's, --drafter converts another repository", given=revision)
    config = target_config(read_config(bring(name)))
    choice = choose_drafter(name, config.model_type, config.hidden_size)
    note(f"drafter: {choice.name}, because {choice.reason}")
    return choice.name, bring(choice.name)


def _is_gguf(name: str) -> bool:
    return name.endswith(".gguf")


def _convert(name: str, source: Path, folder: Path, wanted: "Options") -> "Result":
    from mtp_mlx.convert import convert as convert_checkpoint

    with progress_bar("converting") as update:
        return convert_checkpoint(source, folder, wanted, name=name, progress=update)


def _check_target(source: Path) -> None:
    from mtp_mlx.models.gemma4_config import DRAFTER_TYPES
    from mtp_weights.read import read_config

    if read_config(source).get("model_type") in DRAFTER_TYPES:
        raise MisuseError("a drafter can have many targets", fix="name the one to measure with")


def _measure(source: Path, converted: Path, other: str, num_draft_tokens: int) -> "dict[str, Speculation]":
    """Acceptance with the source, and with what it was converted to, each beside the other half of the pair."""
    from mtp_mlx import load, load_drafter
    from mtp_mlx.acceptance import measure_acceptance
    from mtp_mlx.bench.prompts import default_prompts, select
    from mtp_mlx.models.gemma4_config import DRAFTER_TYPES
    from mtp_weights.read import read_config

    is_drafter = read_config(source)["model_type"] in DRAFTER_TYPES
    found, prompts = {}, None
    for when, folder in (("before", source), ("after", converted)):
        target, drafter = (bring(other), folder) if is_drafter else (folder, other)
        with status(f"measuring acceptance {when}"):
            model, tokenizer = load(target)
            prompts = prompts or [prompt.ids(tokenizer) for prompt in select(default_prompts(model), 1)]
            found[when] = measure_acceptance(
                model, load_drafter(drafter, model), prompts, num_draft_tokens=num_draft_tokens
            )
    return found


def _to_dict(result: "Result", acceptance: "dict[str, Speculation]") -> dict[str, Any]:
    return {
        "folder": str(result.folder),
        "bits_per_weight": result.bits_per_weight,
        "peak_memory": result.peak_memory,
        "acceptance": {when: speculation.to_dict() for when, speculation in acceptance.items()},
    }
