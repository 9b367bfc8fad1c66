"""The targets that `mtp models` lists: official ones, their conversions, and whatever target is in the cache."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mtp_mlx import memory
from mtp_mlx.errors import UserError
from mtp_mlx.models.config import DecoderConfig
from mtp_mlx.models.registry import TARGET_TYPES, target_config
from mtp_weights.hub import cache_state, cached_repositories, snapshot_of
from mtp_weights.pairs import PAIRS, Pair, choose_drafter, known_drafter, official_config, pair_of
from mtp_weights.quantization import quantization_of
from mtp_weights.read import read_config
from mtp_weights.recipe import MODES, Recipe

USUAL = ("", "8bit", "4bit", "qat-4bit")  # what is listed unless all are asked for


@dataclass(frozen=True)
class Entry:
    """One target.

    Attributes:
        name: the short name, or the repository where it has none.
        drafter: the repository; empty where none is known.
        bits: of most weights, e.g. "4" or "mxfp4".
        download_bytes: of target and drafter; where `is_estimate`, of the text model alone and from its configuration.
        needed_bytes: memory for target, drafter, and keys and values at the context length asked for.
        cached: "yes", "partly" or "no", of the target.
    """

    name: str
    target: str
    drafter: str
    bits: str
    download_bytes: int
    is_estimate: bool
    needed_bytes: int
    fits: bool
    cached: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def entries(context: int, everything: bool = False) -> list[Entry]:
    """All targets that are known here.

    Args:
        context: tokens that the keys and values are counted for.
        everything: list every conversion, not only the usual ones.
    """
    listed = [_official(pair, end, context) for pair in PAIRS for end in _ends(pair, everything)]
    known = {entry.target.lower() for entry in listed}
    others = (
        _from_cache(repository, context) for repository in cached_repositories() if repository.lower() not in known
    )
    return [*listed, *filter(None, others)]


def smaller_variant(config: DecoderConfig, context: int, limit: int) -> str | None:
    """The largest known target of this size that needs at most `limit` bytes, by its short name."""
    pair = pair_of(config.model_type, config.hidden_size)
    found = [] if pair is None else [_official(pair, end, context) for end in ("8bit", "6bit", "4bit")]
    fitting = [entry for entry in found if entry.needed_bytes <= limit]
    return max(fitting, key=lambda entry: entry.needed_bytes).name if fitting else None


def _ends(pair: Pair, everything: bool) -> Iterator[str]:
    """The ends of the short names of one size: "" for the official target itself."""
    for name in pair.names:
        end = name.removeprefix(pair.size).removeprefix("-")
        if not end.endswith("assistant") and (everything or end in USUAL):
            yield end


def _official(pair: Pair, end: str, context: int) -> Entry:
    name = f"{pair.size}-{end}" if end else pair.size
    repository = pair.names[name]
    recipe, configs = _recipe(end), [official_config(pair.config), official_config(f"{pair.config}-assistant")]

    def sizes(item_bytes: int) -> list[int]:
        estimates = zip(configs, (recipe, None), strict=True)
        return [memory.estimated_bytes(config, recipe, item_bytes) for config, recipe in estimates]

    config = target_config(configs[0])
    key_values = memory.key_value_bytes(config, context)
    need = memory.Needs(*sizes(memory.ITEM_BYTES), key_values)
    return _entry(
        name,
        repository,
        choose_drafter(repository, config.model_type, pair.hidden_size).name,
        _bits(recipe),
        sizes(2),
        need,
    )


def _recipe(end: str) -> Recipe | None:
    """How a conversion with this end of its name was quantized; None for 16 bits."""
    kind = end.removeprefix("qat").removeprefix("-")
    if kind in ("", "bf16"):
        return None
    recipe = Recipe.of(mode=kind) if kind in MODES else Recipe.of(int(kind.removesuffix("bit")))
    return replace(recipe, keeps_sensitive=False)


def _bits(recipe: Recipe | None) -> str:
    if recipe is None:
        return "16"
    mode = recipe.parameters["mode"]
    return str(recipe.parameters["bits"]) if mode == "affine" else mode


def _from_cache(repository: str, context: int) -> Entry | None:
    """A repository in the cache that is a complete target of any name, such as a fine-tune."""
    folder = snapshot_of(repository)
    if folder is None:
        return None
    try:
        raw = read_config(folder)
        if raw.get("model_type") not in TARGET_TYPES:
            return None
        config = target_config(raw)
        choice = known_drafter(repository, config.model_type, config.hidden_size)
        drafter = "" if choice is None else choice.name
        quantization = quantization_of(raw)
        need = memory.needs(folder, snapshot_of(drafter) if drafter else None, context)
    except UserError:  # a damaged checkpoint in the cache is no reason not to list the others
        return None
    bits = _bits(None if quantization is None else Recipe(quantization))
    return _entry(repository, repository, drafter, bits, [need.target, need.drafter], need)


def _entry(name: str, target: str, drafter: str, bits: str, estimates: Sequence[int], need: memory.Needs) -> Entry:
    folders = [snapshot_of(name) for name in (target, drafter) if name]
    sizes = [size if at is None else _folder_bytes(at) for at, size in zip(folders, estimates, strict=False)]
    return Entry(
        name=name,
        target=target,
        drafter=drafter,
        bits=bits,
        download_bytes=sum(sizes),
        is_estimate=None in folders,
        needed_bytes=need.total,
        fits=need.total <= memory.available(),
        cached=cache_state(target),
    )


def _folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
