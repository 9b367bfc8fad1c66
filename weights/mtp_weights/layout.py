"""Canonical parameter names for every layout in which Gemma 4 checkpoints come.

Canonical are mlx-lm's names for `gemma4_text`. Hugging Face's files say `model.language_model.…` (multimodal)
or `model.…` (text only), mlx-lm's and mlx-vlm's conversions `language_model.model.…`; tools double or lose
prefixes.
"""

import re
from collections.abc import Iterable

import mlx.core as mx

from mtp_weights.errors import UserError

# The last two are what PyTorch's compiled and data-parallel wrappers add.
_WRAPPERS = {"model", "language_model", "_orig_mod", "module"}
_TOWERS = {
    "vision_tower",
    "audio_tower",
    "multi_modal_projector",
    "embed_vision",
    "embed_audio",
    "vision_embedder",
}
# Buffers that some exports save: RoPE's frequencies and the ranges of clipped linears.
_BUFFERS = {"rotary_emb", "input_max", "input_min", "output_max", "output_min"}
_KV_PARAMETER = re.compile(r"layers\.(\d+)\.self_attn\.(?:k_proj|v_proj|k_norm|v_norm)\.")
_EXPERTS = re.compile(r"(.+\.experts)\.(gate_up_proj|down_proj)(?:\.(weight|scales|biases))?")
# What stands beside the decoder, in a target and in a drafter; everything else stands under `model.`.
_BESIDE_MODEL = {"lm_head", "pre_projection", "post_projection", "masked_embedding"}
_DRAFTER_ROOTS = {*_BESIDE_MODEL, "embed_tokens", "layers", "norm"}
_TOKEN_ORDERING = "masked_embedding.token_ordering"
_INTEGERS = (mx.int32, mx.int64, mx.uint32, mx.uint64)


def target_weights(weights: dict[str, mx.array], kv_owners: int, tied: bool) -> dict[str, mx.array]:
    """Brings a target's tensors to canonical names, and leaves out what the text model does not use.

    Args:
        weights: the checkpoint's tensors, quantized by MLX or not.
        kv_owners: how many layers, from the first on, have keys and values of their own; the key and value
            tensors of later layers are dropped.
        tied: whether the head is the embedding table; an `lm_head` is then dropped.

    Returns:
        `model.embed_tokens.weight`, `model.layers.N.…`, `model.norm.weight`, …, and `lm_head.weight` unless
        tied; experts as `experts.switch_glu.{gate,up,down}_proj.…`. Names of no known part are kept, under
        `model.`.

    Raises:
        UserError: two tensors claim one name.
    """
    named = ((_without_wrappers(name), array) for name, array in weights.items())
    used = ((name, array) for name, array in named if _belongs_to_text(name, kv_owners, tied))
    split = (pair for name, array in used for pair in _split_experts(name, array))
    return _unique((_rooted(name), array) for name, array in split)


def drafter_weights(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Brings a drafter's tensors to canonical names; its tied `lm_head` is dropped.

    Returns:
        `pre_projection.weight`, `post_projection.weight`, `model.embed_tokens.weight`, `model.layers.N.…`,
        `model.norm.weight`, and with a clustered head `masked_embedding.centroids.weight` and
        `masked_embedding.token_ordering` (int32).

    Raises:
        UserError: two tensors claim one name, or `token_ordering` is not a permutation.
    """
    named = ((_from_drafter_root(name), array) for name, array in weights.items())
    used = ((name, array) for name, array in named if _belongs_to_text(name, kv_owners=0, tied=True))
    renamed = _unique((_rooted(name), array) for name, array in used)
    if _TOKEN_ORDERING in renamed:
        renamed[_TOKEN_ORDERING] = _permutation(renamed[_TOKEN_ORDERING])
    return renamed


def module_paths(path: str) -> list[str]:
    """The canonical paths of the module that a checkpoint calls `path`: two for fused experts, else one."""
    bare = _without_wrappers(path)
    match = _EXPERTS.fullmatch(bare)
    if match is None:
        return [_rooted(bare)]
    parts = ("gate_proj", "up_proj") if match[2] == "gate_up_proj" else ("down_proj",)
    return [f"{_rooted(match[1])}.switch_glu.{part}" for part in parts]


def canonical(name: str) -> str:
    """The canonical name of a target's parameter, whatever a tool put before it."""
    return _rooted(_without_wrappers(name))


def is_tower(name: str) -> bool:
    """Whether a tensor belongs to an image or audio tower, which the text model does not use."""
    return _without_wrappers(name).split(".")[0] in _TOWERS


def _rooted(bare: str) -> str:
    return bare if bare.split(".")[0] in _BESIDE_MODEL else f"model.{bare}"


def _without_wrappers(name: str) -> str:
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        del parts[0]
    return ".".join(parts)


def _from_drafter_root(name: str) -> str:
    """The name from its first known part on, whatever stands before: a drafter has no towers to confuse."""
    parts = name.split(".")
    roots = (index for index, part in enumerate(parts) if part in _DRAFTER_ROOTS)
    return ".".join(parts[next(roots, 0) :])


def _belongs_to_text(name: str, kv_owners: int, tied: bool) -> bool:
    parts = name.split(".")
    if parts[0] in _TOWERS or not _BUFFERS.isdisjoint(parts):
        return False
    if tied and parts[0] == "lm_head":
        return False
    kv = _KV_PARAMETER.match(name)
    return kv is None or int(kv[1]) < kv_owners


def _split_experts(name: str, array: mx.array) -> list[tuple[str, mx.array]]:
    """Hugging Face's fused `experts.gate_up_proj` [E, 2I, D] as two projections, quantized or not."""
    match = _EXPERTS.fullmatch(name)
    if match is None:
        return [(name, array)]
    base, projection, kind = f"{match[1]}.switch_glu", match[2], match[3] or "weight"
    if projection == "down_proj":
        return [(f"{base}.down_proj.{kind}", array)]
    if array.ndim != 3 or array.shape[1] % 2:
        raise UserError(f"{name} must have shape [experts, 2 · intermediate, hidden]", given=array.shape)
    gate, up = (mx.contiguous(half) for half in mx.split(array, 2, axis=1))
    return [(f"{base}.gate_proj.{kind}", gate), (f"{base}.up_proj.{kind}", up)]


def _unique(pairs: Iterable[tuple[str, mx.array]]) -> dict[str, mx.array]:
    weights: dict[str, mx.array] = {}
    for name, array in pairs:
        if name in weights:
            raise UserError(f"the checkpoint has two tensors for {name}", fix="merge or remove one of them")
        weights[name] = array
    return weights


def _permutation(ordering: mx.array) -> mx.array:
    ordering = ordering.flatten()
    positions = mx.arange(ordering.size, dtype=ordering.dtype)
    if ordering.dtype not in _INTEGERS or not mx.array_equal(mx.sort(ordering), positions).item():
        raise UserError(
            f"{_TOKEN_ORDERING} must be a permutation of the token ids 0 … {ordering.size - 1}",
            given=f"{ordering.dtype} with other values",
            fix="use an unmodified drafter checkpoint",
        )
    return ordering.astype(mx.int32)
