"""A pair with one damaged file, of any kind: refused in one line, or loaded where the damage left a file that means
something; never a crash. `--fuzz-cases 1000` is the long version."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mtp_mlx import load, load_drafter
from mtp_mlx.errors import UserError
from mtp_weights.shards import INDEX
from tests import tiny, tiny_tokenizer

FILES = (
    "target/config.json",
    "target/generation_config.json",
    "target/tokenizer.json",
    "target/tokenizer_config.json",
    f"target/{INDEX}",
    "drafter/config.json",
    "drafter/model.safetensors",
)
STRANGE: tuple[Any, ...] = (
    None,
    True,
    "x",
    "",
    [],
    {},
    [None],
    {"a": 1},
    -1,
    0,
    1.5,
    10**30,
    float("nan"),
    float("inf"),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    sizes = {"vocab_size": tiny_tokenizer.VOCAB_SIZE, "vocab_size_per_layer_input": tiny_tokenizer.VOCAB_SIZE}
    config = tiny.target_config("e2b", **sizes)
    target = tiny.write_target(folder / "target", config)
    tiny_tokenizer.write_tokenizer(target)
    (target / "generation_config.json").write_text('{"eos_token_id": [1, 106], "temperature": 1.0, "top_k": 64}')
    shard = "model-00001-of-00001.safetensors"
    (target / "model.safetensors").rename(target / shard)
    names = mx.load(str(target / shard))
    (target / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, shard)}))
    tiny.write_drafter(folder / "drafter", tiny.drafter_config(config, clustered=True))
    return folder


def damaged(data: bytes, rng: random.Random) -> bytes:
    """What happens to files on their way, or by an editor's hand."""
    way = rng.choice(["empty", "cut", "flip", "flip", "zeros", "lose", "value", "value", "value"])
    at = rng.randrange(min(len(data), 2000))  # in JSON all over it, in safetensors in the header
    if way == "empty":
        return b""
    if way == "cut":
        return data[:at]
    if way == "flip":
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if way == "zeros":
        return data[:at] + bytes(min(64, len(data) - at)) + data[at + 64 :]
    if way == "lose" or data[:1] != b"{":
        return data[:at] + data[at + rng.randrange(1, 9) :]
    content = json.loads(data)
    change_a_value(content, rng)
    return json.dumps(content).encode()


def change_a_value(content: Any, rng: random.Random) -> None:
    """Puts something strange in the place of one value, at any depth, or leaves it out."""
    while True:
        keys = list(content) if isinstance(content, dict) else range(len(content))
        key = rng.choice(list(keys))
        if not isinstance(content[key], dict | list) or not content[key] or rng.random() < 0.3:
            break
        content = content[key]
    if rng.random() < 0.2:
        del content[key]
    else:
        content[key] = rng.choice(STRANGE)


def test_one_damaged_file(pair, tmp_path, fuzz_cases, fuzz_seed):
    rng, refused = random.Random(fuzz_seed), 0
    for case in range(fuzz_cases):
        name = rng.choice(FILES)
        folder = tmp_path / str(case)
        shutil.copytree(pair, folder)
        data = damaged((folder / name).read_bytes(), rng)
        (folder / name).write_bytes(data)
        try:
            model, tokenizer = load(folder / "target")
            load_drafter(folder / "drafter", model)
            assert isinstance(tokenizer.encode("the"), list)
        except UserError as error:
            assert str(error) and "\n" not in str(error), (case, name, str(error))
            refused += 1
        except Exception as error:
            error.add_note(f"case {case}: {name}: {data[:3000]!r}")
            raise
        shutil.rmtree(folder)
    assert refused > fuzz_cases / 4
