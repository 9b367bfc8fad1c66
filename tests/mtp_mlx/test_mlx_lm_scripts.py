"""Scripts for mlx-lm's batches, run by mlx-lm and by mtp_mlx with a `draft_model`: the same tokens."""

import importlib
from types import ModuleType

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model as mlx_lm_load_model

import mtp_mlx
from mtp_mlx.load import load_tokenizer
from tests import tiny, tiny_tokenizer
from tests.batches import config_of, drafter

mlx_lm = importlib.import_module("mlx_lm.generate")  # the package has a function of that name
PROMPTS = [[2, 9, 17, 4], [2, 60, 33, 71, 12, 90, 45, 8, 5], [2, 101]]


def two_turns(lm: ModuleType, model, tokenizer, **options) -> list:
    first = lm.batch_generate(
        model, tokenizer, PROMPTS, max_tokens=[6, 9, 12], return_prompt_caches=True, return_token_ids=True, **options
    )
    turns = [[7, 8, 9]] * len(PROMPTS)
    second = lm.batch_generate(model, tokenizer, turns, first.caches, 8, return_token_ids=True, **options)
    return [first.texts, first.token_ids, second.texts, second.token_ids]


def continuous(lm: ModuleType, model, tokenizer, **options) -> list:
    generator = lm.BatchGenerator(model, max_tokens=20, completion_batch_size=4, prefill_batch_size=2, **options)
    (first,) = generator.insert([PROMPTS[0]])
    found = {first: []}
    finished = {}
    while True:
        prompts, tokens = generator.next()
        if not prompts and not tokens:
            break
        for each in tokens:
            found[each.uid].append(each.token)
            if each.finish_reason:
                finished[each.uid] = (each.finish_reason, each.all_tokens)
        if len(found[first]) >= 3 and len(found) == 1:
            later = generator.insert(PROMPTS[1:], max_tokens=[7, 30])
            found |= {uid: [] for uid in later}
    generator.close()
    return [list(found.values()), dict(sorted(finished.items()))]


@pytest.mark.parametrize("script", [two_turns, continuous])
@pytest.mark.parametrize("architecture", ["e2b", "llama"])
def test_a_script_gives_the_same_tokens(tmp_path, architecture, script):
    folder = tiny.write_target(tmp_path / "target", config_of(architecture))
    tokenizer = load_tokenizer(tiny_tokenizer.write_tokenizer(tmp_path), {1})
    model, _ = mlx_lm_load_model(folder, lazy=True)
    model.set_dtype(mx.float32)
    expected = script(mlx_lm, model, tokenizer)
    assert script(mtp_mlx, model, tokenizer, draft_model=drafter(architecture)) == expected
