"""A cache in a file goes on as if it had never left memory, and a wrong file is refused by name."""

import json

import mlx.core as mx
import pytest

from mtp_mlx import UserError, generate_step
from mtp_mlx.prompt_cache import PromptCache
from mtp_mlx.prompt_cache_file import load_prompt_cache, save_prompt_cache
from tests import tiny
from tests.mtp_mlx.test_prompt_cache import CONFIG, ids


@pytest.fixture(scope="module")
def model():
    return tiny.build_target(CONFIG)


def continued(cache: PromptCache, prompt: list[int]) -> tuple[int, list]:
    """How many tokens of `prompt` are new, and 20 emitted ones with their log-probabilities."""
    new = cache.begin(prompt)
    return len(new), list(generate_step(new, cache.model, max_tokens=20, prompt_cache=cache.cache))


def filled(model, prompt: list[int], tokens: int = 60, marked: int = 0) -> PromptCache:
    cache = PromptCache(model)
    cache.begin(prompt)
    for token, *_ in generate_step(cache.process(marked), model, max_tokens=tokens, prompt_cache=cache.cache):
        cache.record(token)
    return cache


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_a_turn_after_loading_has_the_bits_of_a_cold_one(architecture, tmp_path):
    model = tiny.build_target(tiny.target_config(architecture))
    cache = filled(model, ids(30), marked=25)
    save_prompt_cache(tmp_path / "a", cache)
    for prompt, new in ((cache.ids + ids(7, seed=1), 7), (ids(25) + ids(9, seed=2), 9)):
        loaded = load_prompt_cache(tmp_path / "a", model)
        assert loaded.ids == cache.ids
        count, emitted = continued(loaded, prompt)
        assert count == new
        _, cold = continued(PromptCache(model), prompt)
        assert [token for token, *_ in emitted] == [token for token, *_ in cold]
        pairs = zip(emitted, cold, strict=True)
        assert all(mx.array_equal(a, b).item() for (_, a, _), (_, b, _) in pairs)


def test_an_empty_cache_is_a_file_too(model, tmp_path):
    save_prompt_cache(tmp_path / "a", PromptCache(model))
    assert load_prompt_cache(tmp_path / "a", model).ids == []
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_another_model_s_cache_is_refused(model, tmp_path):
    save_prompt_cache(tmp_path / "a", filled(model, ids(9), 3))
    with pytest.raises(UserError, match="the prompt cache was made with another model"):
        load_prompt_cache(tmp_path / "a", tiny.build_target(CONFIG, seed=5))


def write(path, arrays, state) -> None:
    mx.save_safetensors(str(path.with_suffix(".safetensors")), arrays, metadata={"mtp": json.dumps(state)})
    path.with_suffix(".safetensors").rename(path)


def test_what_is_no_cache_is_refused(model, tmp_path):
    file = tmp_path / "a"
    with pytest.raises(UserError, match="cannot read the prompt cache"):
        load_prompt_cache(file, model)
    file.write_text("nothing")
    with pytest.raises(UserError, match="cannot read the prompt cache"):
        load_prompt_cache(file, model)
    mx.save_safetensors(str(tmp_path / "b.safetensors"), {"ids": mx.array([1])})
    with pytest.raises(UserError, match="cannot read the prompt cache"):
        load_prompt_cache(tmp_path / "b.safetensors", model)
    write(file, {"ids": mx.array([1])}, {"format": "mtp prompt cache 0"})
    with pytest.raises(UserError, match="another format"):
        load_prompt_cache(file, model)


def test_a_damaged_cache_is_refused(model, tmp_path):
    file = tmp_path / "a"
    save_prompt_cache(file, filled(model, ids(20), 3))
    arrays, metadata = mx.load(str(file), format="safetensors", return_metadata=True)
    state = json.loads(metadata["mtp"])
    for name in ("ids", "layers.0.keys", "checkpoints.0.0.values"):
        write(file, {key: array for key, array in arrays.items() if key != name}, state)
        with pytest.raises(UserError, match=f"the prompt cache is damaged .*{name}"):
            load_prompt_cache(file, model)
    write(file, {**arrays, "ids": arrays["ids"][:5]}, state)
    with pytest.raises(UserError, match="must have the shape"):
        load_prompt_cache(file, model)


def test_a_cache_that_cannot_be_written_leaves_nothing(model, tmp_path):
    with pytest.raises(UserError, match="cannot write the prompt cache"):
        save_prompt_cache(tmp_path / "no" / "a", PromptCache(model))
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="cannot write the prompt cache"):
        save_prompt_cache(tmp_path / "folder", PromptCache(model))
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]
