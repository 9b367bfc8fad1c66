"""`mtp bench --estimate`: what a pair would do on this machine, before it is downloaded."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtp_cli.console import progress_bar, status
from mtp_weights.errors import MisuseError

if TYPE_CHECKING:
    from mtp_mlx.bench.estimate import Estimate
    from mtp_weights.recipe import Recipe


def print_estimate(name: str, drafter_name: str | None, q_bits: int | None, context: int, as_json: bool) -> None:
    """Measures and prints.

    Args:
        name: "31b" and so on, "demo", or a folder with a config.json.
        drafter_name: a folder with a config.json, "auto" for the one that is known, or None for plain decoding alone.
        q_bits: bits of the target's weights; None for 16.
        context: tokens in the key-value store.
    """
    target, known = _configs(name)
    drafter = known if drafter_name == "auto" else None if drafter_name is None else _drafter_config(drafter_name)
    recipe = _recipe(q_bits)
    with status("building the first part") as building, progress_bar("measuring") as update:
        from mtp_mlx.bench.estimate import estimate

        def progress(done: int, total: int) -> None:
            if done:
                building.stop()
            update(done, total)

        found = estimate(name, target, drafter, recipe, context, progress)
    if as_json:
        print(json.dumps(found.to_dict(), ensure_ascii=False))
    else:
        _print(found)


def _configs(name: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """config.json of the target and, where it is known, of its drafter."""
    from mtp_weights.pairs import DEMO_DRAFTER, DEMO_TARGET, PAIRS, bundled_folder, official_config
    from mtp_weights.read import read_config

    if name == DEMO_TARGET:
        return read_config(bundled_folder(DEMO_TARGET)), read_config(bundled_folder(DEMO_DRAFTER))
    if Path(name).is_dir():
        return read_config(Path(name)), None
    for pair in PAIRS:
        if pair.size == name.lower():
            return official_config(pair.config), official_config(f"{pair.config}-assistant")
    known = ", ".join(pair.size for pair in PAIRS)
    raise MisuseError("no such model to estimate", given=name, fix=f"there are {known}, demo, or a folder")


def _drafter_config(folder: str) -> dict[str, Any]:
    from mtp_weights.read import read_config

    if not Path(folder).is_dir():
        raise MisuseError("an estimate takes its drafter from a folder", given=folder, fix="leave out --draft-model")
    return read_config(Path(folder))


def _recipe(q_bits: int | None) -> "Recipe | None":
    from mtp_weights.recipe import Recipe

    return None if q_bits is None or q_bits == 16 else Recipe.of(q_bits)


def _print(found: "Estimate") -> None:
    from mtp_cli.tables import new_table, stdout
    from mtp_mlx.bench.estimate.predict import ACCEPTANCES

    plain = found.plain_tps
    print(f"{found.name}, {found.quantization}, random weights, after {found.context} tokens")
    print(f"plain decoding: {plain.median:.3g} tok/s ({plain.lower:.3g}–{plain.upper:.3g})\n")
    if not found.round_seconds:
        print("without a drafter (--draft-model names its folder)\n")
    else:
        console = stdout()
        table = new_table(console)
        table.add_column("drafts\na round", justify="right")
        table.add_column("round,\nplain steps", justify="right")
        for acceptance in ACCEPTANCES:
            table.add_column(f"speed-up at\n{acceptance:.0%}", justify="right")
        for drafts in found.round_seconds:
            speed_ups = [f"{found.speed_up(drafts, acceptance):.2f}×" for acceptance in ACCEPTANCES]
            table.add_row(str(drafts), f"{found.cost(drafts):.2f}", *speed_ups)
        console.print(table)
        print("\nn %: the chance that a draft is accepted when those before it were")
    machine = found.machine
    print(
        f"weights: {found.weight_bytes / 1e9:.2f} GB, at most {found.largest_part / 1e9:.2f} GB of them at a time here"
    )
    print(f"on {machine.processor}, {machine.cores} cores, {machine.device}, MLX {machine.mlx}, BLAS: {machine.blas}")
