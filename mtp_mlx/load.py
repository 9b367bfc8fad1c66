"""From a checkpoint to modules: targets, drafters, tokenizers, and targets that mlx-lm has loaded already."""

import weakref
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.models import gemma4 as mlx_lm_gemma4
from mlx_lm.models import gemma4_text as mlx_lm_gemma4_text
from mlx_lm.models import llama as mlx_lm_llama
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tokenizer_utils import load as load_tokenizer_files

from mtp_mlx.adapters import load_adapters
from mtp_mlx.errors import UserError
from mtp_mlx.models.drafter import Drafter
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant, to_cluster_order
from mtp_mlx.models.gemma4_config import AssistantConfig
from mtp_mlx.models.memo import weight_ids
from mtp_mlx.models.registry import STANDALONE_TYPES, drafter_config, new_target, target_config
from mtp_mlx.models.standalone import StandaloneDrafter
from mtp_mlx.models.target import Target
from mtp_mlx.pairing import check_pair, check_standalone, check_tokenizers
from mtp_weights.layout import drafter_weights, target_weights
from mtp_weights.locate import resolve
from mtp_weights.openblas import use_threads
from mtp_weights.pairs import choose_drafter
from mtp_weights.quantization import module_quantization, quantization_of
from mtp_weights.read import read_config, read_generation_config, read_weights, stop_ids

SMALL_MATRIX = 2**18

MlxLmModel = mlx_lm_gemma4_text.Model | mlx_lm_llama.Model
AnyTarget = Target | mlx_lm_gemma4.Model | MlxLmModel


def load(path_or_repo: str | Path, adapter_path: str | Path | None = None) -> tuple[Target, TokenizerWrapper]:
    """Loads a target and its tokenizer, as `mlx_lm.load` does.

    Args:
        path_or_repo: a local folder, a Hugging Face repository, or "demo" for the bundled pair's target.
        adapter_path: a folder of LoRA adapters that `mlx_lm.lora` wrote.

    Raises:
        UserError: not found, not a target, or the files are incomplete or damaged.
    """
    path = resolve(str(path_or_repo))
    model, config = load_model(path)
    model.name = str(path_or_repo)
    if adapter_path is not None:
        load_adapters(model, Path(adapter_path))
    return model, load_tokenizer(path, stop_ids(config, read_generation_config(path)))


def load_model(path_or_repo: str | Path) -> tuple[Target, dict[str, Any]]:
    """Loads a target alone.

    Returns:
        The model, and its config.json as a dict.
    """
    path = resolve(str(path_or_repo))
    raw = read_config(path)
    config = target_config(raw)
    weights = target_weights(read_weights(path), len(config.kv_owners), config.tie_word_embeddings)
    model = new_target(config)
    model.name, model.path = str(path_or_repo), path
    _match(model, weights, raw)
    _fill(model, weights)
    if _on_cpu():
        choose_threads(model)
    return model, raw


def load_tokenizer(path: Path, eos_token_ids: set[int]) -> TokenizerWrapper:
    """The tokenizer in `path`; `eos_token_ids` are added to those it knows itself.

    Raises:
        UserError: there is none, or its files cannot be read.
    """
    if not (path / "tokenizer.json").exists():
        raise UserError("no tokenizer.json in the model folder", given=path, fix="download the model again")
    try:
        return load_tokenizer_files(path, eos_token_ids=sorted(eos_token_ids))
    except Exception as error:  # as wide as it is because `tokenizers` raises bare Exception for what it cannot parse
        raise UserError(
            "cannot read the tokenizer", given=f"{path}: {error}", fix="download the model again"
        ) from error


def load_drafter(path_or_repo: str | Path, model: AnyTarget, *, draft_position: str = "next") -> Drafter:
    """Loads a drafter for `model`: its MTP drafter, or a small model that drafts by itself.

    The pair is checked by its configurations before any weights are read.

    Args:
        path_or_repo: a local folder, a Hugging Face repository, or "auto" for the one that belongs to `model`.
        model: the target.
        draft_position: see `Gemma4Assistant`.

    Raises:
        UserError: not found, not a drafter, not this target's drafter, or the files are incomplete or damaged.
    """
    target = as_target(model)
    if str(path_or_repo) == "auto":
        path_or_repo = choose_drafter(target.name, target.config.model_type, target.config.hidden_size).name
    path = resolve(str(path_or_repo))
    raw = read_config(path)
    alone = raw.get("model_type") in STANDALONE_TYPES
    config = target_config(raw) if alone else drafter_config(raw)
    (check_standalone if alone else check_pair)(target.config, config)
    if target.path is not None:
        check_tokenizers(target.path, path)
    return as_drafter(load_model(path)[0]) if alone else _load_assistant(path, raw, config, draft_position)


def _load_assistant(path: Path, raw: dict[str, Any], config: AssistantConfig, draft_position: str) -> Gemma4Assistant:
    weights = drafter_weights(read_weights(path))
    drafter = Gemma4Assistant(config, draft_position)
    _match(drafter, weights, raw)
    weights = to_cluster_order(weights)
    mx.eval(weights)  # frees the table as it was read before anything else takes memory
    _fill(drafter, weights)
    return drafter


def as_drafter(model: Drafter | AnyTarget) -> Drafter:
    """The drafter itself, or for a target, ours or mlx-lm's, a drafter that drafts with it; the same one each time."""
    if not isinstance(model, Target | mlx_lm_gemma4.Model | MlxLmModel):
        return model
    target = as_target(model)
    drafter = target.memo.get("drafter", None) or StandaloneDrafter(target)
    target.memo.put("drafter", drafter)
    return drafter


def as_target(model: AnyTarget) -> Target:
    """The target itself, or for a model that `mlx_lm.load` returned, a target over the very same weights.

    Nothing is copied: the new target takes over mlx-lm's layers (quantized or LoRA ones too) and arrays.

    Raises:
        UserError: neither a target nor a model of mlx-lm that can be one.
    """
    if isinstance(model, Target):
        return model
    inner = model.language_model if isinstance(model, mlx_lm_gemma4.Model) else model
    if not isinstance(inner, MlxLmModel):
        given = f"{type(model).__module__}.{type(model).__name__}"
        raise UserError("the model must be a target of mtp's or mlx-lm's", given=given, fix="load it with mtp_mlx.load")
    weights = weight_ids(inner)
    known, target = _ADOPTED.get(id(inner), ([], None))
    if weights != known:
        if target is None:
            weakref.finalize(inner, _ADOPTED.pop, id(inner), None)
        target = _adopt(inner)
        _ADOPTED[id(inner)] = weights, target
    return target


# Targets over mlx-lm's models, by the id of the model, for as long as it lives: compiled functions stay with a target.
_ADOPTED: dict[int, tuple[list[int], Target]] = {}


def _adopt(source: MlxLmModel) -> Target:
    target = new_target(target_config(vars(source.args)))
    modules = dict(source.named_modules())
    leaves = tree_map_with_path(
        lambda path, own: modules.get(path, own) if own.parameters() else own,
        target.leaf_modules(),
        is_leaf=nn.Module.is_module,
    )
    target.update_modules(leaves)
    arrays = tree_flatten(source.parameters(), destination={})
    target.load_weights([(path, arrays[path]) for path, _ in tree_flatten(target.parameters())])
    return target


def _match(module: nn.Module, weights: dict[str, mx.array], config: dict[str, Any]) -> None:
    """Makes `module` quantized where the checkpoint is, and sees to it that `weights` are all it needs and no more."""
    nn.quantize(module, class_predicate=partial(_quantization_of, quantization_of(config), weights))
    _check_complete(tree_flatten(module.parameters(), destination={}), weights)


def _fill(module: nn.Module, weights: dict[str, mx.array]) -> None:
    """Gives `module` its weights, in the dtypes and layouts that suit the device."""
    module.load_weights([(name, _for_device(array)) for name, array in weights.items()])
    lay_out(module)
    module.eval()
    mx.eval(module.parameters())


def lay_out(module: nn.Module) -> None:
    """Gives the weights of `module` the layout in memory that the device multiplies fastest."""
    if _on_cpu():
        module.apply_to_modules(_lay_out_for_cpu)


def _quantization_of(
    quantization: dict | None, weights: dict[str, mx.array], path: str, leaf: nn.Module
) -> dict | bool:
    if f"{path}.scales" not in weights:
        return False
    return module_quantization(path, quantization, weights, in_dims=leaf.weight.shape[-1])


def _on_cpu() -> bool:
    return mx.default_device().type == mx.DeviceType.cpu


def _for_device(array: mx.array) -> mx.array:
    """On a CPU, float32: MLX's 16-bit products there use no BLAS and cost as much for each further row."""
    return array.astype(mx.float32) if _on_cpu() and array.dtype in (mx.bfloat16, mx.float16) else array


def choose_threads(model: Target) -> None:
    """One BLAS thread for a small target: on two cores the demo target's pass takes 5.6 instead of 7.0 ms, one with
    matrices of 512 to 2048 takes 38 instead of 28 (docs/log.md, 2026-11-30).
    """
    sizes = [module.weight.size for module in model.layers[0].modules() if isinstance(module, nn.Linear)]
    use_threads(single=bool(sizes) and median(sizes) < SMALL_MATRIX)


def _lay_out_for_cpu(_: str, module: nn.Module) -> None:
    """Keeps some linear weights [out, in] transposed in memory, by what OpenBLAS was measured to multiply faster.

    Small ones that widen: one row takes 0.28 instead of 0.54 ms at 256 to 2048, but 0.33 instead of 0.21 ms the other
    way. Small squares, where several rows gain. Large ones that narrow: 1.2 instead of 1.7 ms at 3072 to 768, but 1.35
    instead of 1.24 ms the other way (docs/log.md, 2026-11-30).
    """
    if isinstance(module, nn.Linear):
        out, into = module.weight.shape
        small = module.weight.size < 2**20
        if (out > into or out == into <= 384) if small else into > out:
            module.weight = mx.contiguous(module.weight.T).T


def _check_complete(expected: dict[str, mx.array], given: dict[str, mx.array]) -> None:
    if missing := sorted(expected.keys() - given.keys()):
        raise UserError(
            f"the checkpoint lacks {len(missing)} tensors: {_some(missing)}", fix="download the model again"
        )
    if unknown := sorted(given.keys() - expected.keys()):
        raise UserError(
            f"the checkpoint has {len(unknown)} tensors that its config.json does not describe: {_some(unknown)}",
            fix="check that config.json and the weights belong together",
        )
    for name, array in expected.items():
        if array.shape != given[name].shape:
            raise UserError(
                f"{name} must have the shape {array.shape}",
                given=given[name].shape,
                fix="check that config.json and the weights belong together",
            )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
