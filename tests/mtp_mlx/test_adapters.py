"""LoRA adapters of mlx-lm on a target: same logits as in mlx-lm, and refused where they do not fit."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import gemma4, gemma4_text
from mlx_lm.tuner.utils import linear_to_lora_layers

from mtp_mlx import generate_step, load_model
from mtp_mlx.adapters import load_adapters
from mtp_mlx.errors import UserError
from tests.tiny import build_drafter, build_target, drafter_config, random_weights, target_config, write_target

IDS = mx.array([[2, 5, 9, 70, 11, 3]])
PARAMETERS = {"rank": 4, "scale": 8.0, "dropout": 0.1, "keys": ["self_attn.q_proj", "mlp.down_proj"]}
CONFIG = target_config("e2b")


def adapted(multimodal: bool, folder: Path, kind: str = "lora") -> mx.array:
    """Writes adapters as mlx_lm.lora does, and gives mlx-lm's logits with them."""
    inner = gemma4_text.Model(gemma4_text.ModelArgs.from_dict(CONFIG))
    inner.load_weights(list(random_weights(build_target(CONFIG)).items()))
    model = inner
    if multimodal:
        model = gemma4.Model(gemma4.ModelArgs(text_config=dict(CONFIG), vocab_size=CONFIG["vocab_size"]))
        model.language_model = inner
    linear_to_lora_layers(model, 3, PARAMETERS, use_dora=kind == "dora")
    names = [name for name, _ in tree_flatten(model.parameters()) if name.endswith(("lora_a", "lora_b"))]
    trained = tree_flatten(model.parameters(), destination={})
    for n, name in enumerate(names):
        trained[name] = 0.2 * mx.random.normal(trained[name].shape, key=mx.random.key(n))
    model.load_weights(list(trained.items()))
    saved = {name: array for name, array in trained.items() if name.rsplit(".", 1)[-1] in ("lora_a", "lora_b", "m")}
    folder.mkdir()
    mx.save_safetensors(str(folder / "adapters.safetensors"), saved)
    config = {"fine_tune_type": kind, "num_layers": 3, "lora_parameters": PARAMETERS}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    model.eval()
    return model(IDS)


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("multimodal", [False, True])
def test_logits_are_mlx_lms(tmp_path, multimodal, kind):
    expected = adapted(multimodal, tmp_path / "adapters", kind)
    model = build_target(CONFIG)
    before = model(IDS)
    load_adapters(model, tmp_path / "adapters")
    assert mx.abs(model(IDS) - expected).max().item() < 1e-3
    assert mx.abs(model(IDS) - before).max().item() > 0.1


def test_speculation_is_lossless_on_an_adapted_target(tmp_path):
    adapted(False, tmp_path / "adapters")
    model, _ = load_model(write_target(tmp_path / "target", CONFIG))
    load_adapters(model, tmp_path / "adapters")
    drafter = build_drafter(drafter_config(CONFIG, clustered=True))
    options = {"max_tokens": 24, "num_draft_tokens": 3}
    plain = [token for token, _, _ in generate_step([2, 5, 9], model, **options)]
    assert [token for token, _, _ in generate_step([2, 5, 9], model, draft_model=drafter, **options)] == plain


def test_adapters_of_another_model(tmp_path):
    adapted(False, tmp_path / "adapters")
    with pytest.raises(UserError, match="the adapters do not fit the model: .*use the model they were trained on"):
        load_adapters(build_target(target_config("e2b", hidden_size=32)), tmp_path / "adapters")
    weights = mx.load(str(tmp_path / "adapters" / "adapters.safetensors"))
    weights.pop(next(iter(weights)))
    mx.save_safetensors(str(tmp_path / "adapters" / "adapters.safetensors"), weights)
    with pytest.raises(UserError, match="do not fit the model: 1 tensors have no place in it or are missing"):
        load_adapters(build_target(CONFIG), tmp_path / "adapters")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("adapter_config.json", None, "no adapter_config.json in the adapter folder"),
        ("adapters.safetensors", None, "no adapters.safetensors in the adapter folder"),
        ("adapter_config.json", "[]", "must hold a JSON object"),
        ("adapter_config.json", "{}", "does not describe adapters of mlx-lm"),
        ("adapter_config.json", '{"num_layers": "x", "lora_parameters": {"rank": 4, "scale": 1}}', "does not describe"),
        ("adapters.safetensors", "x", "not a safetensors file, or a truncated one"),
    ],
)
def test_folders_that_hold_no_adapters(tmp_path, name, content, message):
    adapted(False, tmp_path / "adapters")
    (tmp_path / "adapters" / name).unlink()
    if content is not None:
        (tmp_path / "adapters" / name).write_text(content)
    with pytest.raises(UserError, match=message):
        load_adapters(build_target(CONFIG), tmp_path / "adapters")
