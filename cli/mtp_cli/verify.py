"""`mtp verify`: are the files of a pair whole, do they belong together, and how exact is their output here?"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtp_cli import options
from mtp_cli.checklist import print_checks
from mtp_cli.console import progress_bar, status
from mtp_cli.download import bring
from mtp_cli.pair import Pair, PairOptions, find_drafter, load_pair
from mtp_cli.statistics import speculation_line

if TYPE_CHECKING:
    from mtp_mlx import Speculation
    from mtp_mlx.doctor import Check

PROMPTS = 2  # of each category


def verify(
    model: Annotated[
        str, typer.Argument(metavar="[NAME]", help="The target: a folder, a Hugging Face repository, or 'demo'.")
    ] = "demo",
    draft_model: options.DraftModel = "auto",
    num_draft_tokens: Annotated[
        int,
        typer.Option(metavar="N", help="Drafts a round.", callback=options.positive("--num-draft-tokens")),
    ] = 4,
    num_tokens: Annotated[
        int,
        typer.Option(
            "--num-tokens",
            "-n",
            metavar="N",
            help="Tokens of each reply that is compared.",
            callback=options.positive("--num-tokens"),
        ),
    ] = 64,
    force: options.Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check a pair's files, and measure how exact its output is on this machine.

    The exit code is 1 where something is wrong, and 0 otherwise.
    """
    from mtp_mlx.doctor import ERROR

    pair_options = PairOptions.of(model, draft_model, False, str(num_draft_tokens), force=force)
    checks = _files(pair_options)
    facts: dict[str, Any] = {}
    if all(check.state != ERROR for check in checks):
        measured, facts = _measure(load_pair(pair_options), num_draft_tokens, num_tokens)
        checks += measured
    if as_json:
        print(json.dumps({"checks": [check.to_dict() for check in checks], **facts}))
    else:
        print_checks(checks)
    raise typer.Exit(1 if any(check.state == ERROR for check in checks) else 0)


def _files(pair_options: PairOptions) -> "list[Check]":
    from mtp_mlx.verify import check_files

    target = bring(pair_options.model)
    folders = {"target": target, "drafter": bring(find_drafter(pair_options, target))}
    checks = []
    for role, folder in folders.items():
        with progress_bar(f"reading the {role}") as update:
            checks.append(check_files(f"{role} files", folder, update))
    return checks


def _measure(pair: Pair, num_draft_tokens: int, num_tokens: int) -> "tuple[list[Check], dict[str, Any]]":
    from mtp_mlx import verify as measures
    from mtp_mlx.doctor import OK, Check
    from mtp_mlx.exactness import measure_kinds

    model, drafter, prompts = pair.model, pair.drafter, _prompts(pair)
    most_rows = num_draft_tokens + 1
    amounts = {"num_tokens": num_tokens, "num_draft_tokens": num_draft_tokens}
    with status("comparing widths, layer by layer"):
        kinds = measure_kinds(model, _long_enough(prompts, most_rows), most_rows)
    with status("comparing replies"):
        ordinary = measures.compare(model, drafter, prompts, **amounts)
        way, exact = _exact(pair, prompts, amounts, needed=not all(kind.is_exact for kind in kinds))
    with status("comparing draft positions"):
        positions = measures.positions(model, drafter, prompts, **amounts)
    found = measures.contract(kinds, ordinary, way, exact)
    checks = [
        Check("pair", OK, "target and drafter belong together"),
        *measures.width_checks(kinds, most_rows),
        measures.greedy_check(ordinary),
        _position_check(pair, positions),
        measures.contract_check(found),
    ]
    facts = {
        "contract": found.to_dict(),
        "kinds": [kind.to_dict() for kind in kinds],
        "divergences": [each and asdict(each) for each in ordinary.divergences],
        "exact": way and way.to_dict(),
        "draft_positions": {name: speculation.to_dict() for name, speculation in positions.items()},
    }
    return checks, facts


def _exact(pair: Pair, prompts: list[list[int]], amounts: dict[str, int], needed: bool):
    """How `--exact` decodes and what comes of it; None twice where it is not needed or there is no way."""
    from mtp_mlx import verify as measures
    from mtp_mlx.errors import UserError
    from mtp_mlx.exactness import exact_way

    if not needed:
        return None, None
    tokens = max(map(len, prompts)) + amounts["num_tokens"]
    try:
        way = exact_way(pair.model, tokens, amounts["num_draft_tokens"])
        return way, measures.compare(pair.model, pair.drafter, prompts, **amounts, exact=True)
    except UserError:  # the contract says so
        return None, None


def _position_check(pair: Pair, positions: "dict[str, Speculation]") -> "Check":
    """Says which draft position is better, and keeps it for the pair."""
    from mtp_mlx.doctor import OK, Check
    from mtp_mlx.verify import better_position
    from mtp_weights.preferences import keep_draft_position

    best = better_position(positions)
    keep_draft_position(pair.options.model, pair.drafter_name, best)
    others = (name for name in positions if name != best)
    rest = "; ".join(f"{name}: {positions[name].acceptance_rate:.0%}" for name in others)
    return Check("drafts", OK, f"{best}: {speculation_line(positions[best])}; {rest}. {best} is kept for this pair")


def _prompts(pair: Pair) -> list[list[int]]:
    from mtp_mlx.bench.prompts import default_prompts, select

    return [prompt.ids(pair.tokenizer) for prompt in select(default_prompts(pair.model), PROMPTS)]


def _long_enough(prompts: list[list[int]], most_rows: int) -> list[int]:
    """The longest prompt, repeated where it is too short to have a context before its last rows."""
    ids = max(prompts, key=len)
    return ids * (1 + 2 * most_rows // len(ids))
