"""The key-value store: entries, growth, rewinding, and that nothing is ever copied while decoding."""

import random

import mlx.core as mx
import pytest

from mtp_mlx import generate_step
from mtp_mlx.decoding.compiled import CompiledRound
from mtp_mlx.decoding.depth import FixedDepth
from mtp_mlx.decoding.plain import plain_tokens
from mtp_mlx.decoding.round import Round
from mtp_mlx.decoding.stream import TokenStream
from mtp_mlx.kv_cache import CAPACITY_STEP, KVCache, LayerCache
from mtp_mlx.models import registry
from tests import tiny

WINDOW = 12


@pytest.fixture(scope="module")
def model():
    return tiny.build_target(tiny.target_config("e2b", sliding_window=WINDOW))


def ids(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(128) for _ in range(count)]


def logits_after(model, prompt: list[int], cache: KVCache) -> mx.array:
    return next(plain_tokens(model, prompt, cache))[1]


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_has_one_entry_for_each_owner_and_none_for_layers_that_share(architecture):
    config = registry.target_config(tiny.target_config(architecture))
    cache = KVCache(config)
    raw = tiny.target_config(architecture)
    assert len(cache) == raw["num_hidden_layers"] - raw.get("num_kv_shared_layers", 0)
    types = raw.get("layer_types", [tiny.F] * len(cache))
    assert [layer.layer.layer_type for layer in cache] == types[: len(cache)]


@pytest.mark.parametrize("depth", [0, 3, 16])
@pytest.mark.parametrize("prompt_length", [CAPACITY_STEP - 18, CAPACITY_STEP - 1, CAPACITY_STEP, CAPACITY_STEP + 1])
def test_growing_across_a_capacity_step_changes_nothing(model, prompt_length, depth):
    prompt, tokens = ids(prompt_length), 24
    roomy = model.make_cache()
    roomy.reserve(4 * CAPACITY_STEP)
    roomy.written = 0
    plain = plain_tokens(model, prompt, roomy)
    truth = [next(plain) for _ in range(tokens)]
    drafter = tiny.ScriptedDrafter(
        prompt + [token for token, _ in truth], [i % 3 == 0 for i in range(prompt_length + tokens)], 128
    )
    cache = model.make_cache()
    emitted = list(TokenStream(Round(model, drafter), cache, prompt, max_tokens=tokens, depth=FixedDepth(depth)))
    assert [e.token for e in emitted] == [token for token, _ in truth]
    assert all(mx.array_equal(e.logits, logits).item() for e, (_, logits) in zip(emitted, truth, strict=True))
    assert cache.capacity >= cache.written


@pytest.mark.parametrize("held", [5, WINDOW, 40, 120])
def test_after_a_rewind_the_rest_equals_a_cold_run(model, held):
    prompt = ids(held)
    for target in sorted({0, 1, held // 2, held - 3, held - 1, held}):
        cache = model.make_cache(max_draft_tokens=2)
        logits_after(model, prompt, cache)
        kept = cache.rewind(target)
        assert kept <= target and kept == cache.offset
        rest = prompt[kept:target] + ids(4, seed=1)
        cold = logits_after(model, prompt[:target] + ids(4, seed=1), model.make_cache(max_draft_tokens=2))
        assert mx.array_equal(logits_after(model, rest, cache), cold).item(), (held, target, kept)


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_however_a_text_is_cut_into_chunks_and_rows_its_logits_have_the_same_bits(architecture):
    model = tiny.build_target(tiny.target_config(architecture))
    rng = random.Random(architecture)
    for length in (30, 70, 150, 260):
        text = mx.array([ids(length), ids(length, seed=1)])
        whole = model.logits(model.model.prefill(text, model.make_cache(slots=2)))
        cache, start = model.make_cache(slots=2), 0
        while start < length:
            step = rng.choice([1, 2, 5, 17, 18, 40, 90])
            hidden = model.model.prefill(text[:, start : start + step], cache)
            start += step
        assert mx.array_equal(model.logits(hidden), whole).item(), length


def test_a_checkpoint_brings_back_what_the_rings_have_forgotten(model):
    prompt, later = ids(50), ids(90, seed=1)
    cache = model.make_cache(max_draft_tokens=2)
    cold = logits_after(model, prompt + later[:5], model.make_cache(max_draft_tokens=2))
    logits_after(model, prompt, cache)
    cache.checkpoint()
    for turn in range(3):  # the checkpoint itself must survive being written over
        model(mx.array([later]), cache)
        assert cache.rewind(60 if turn else 50) == 50
    assert mx.array_equal(logits_after(model, later[:5], cache), cold).item()


def test_without_a_checkpoint_a_rewind_past_the_rings_starts_over(model):
    cache = model.make_cache(max_draft_tokens=2)
    logits_after(model, ids(200), cache)
    assert cache.rewind(50) == 0


def test_rewinding_before_the_checkpoint_forgets_it(model):
    cache = model.make_cache()
    logits_after(model, ids(30), cache)
    cache.checkpoint()
    assert cache.rewind(4) == 4
    model(mx.array([ids(100, seed=2)]), cache)
    assert cache.rewind(31) == 0


@pytest.fixture(scope="module")
def wide_model():
    """Mostly keys and values: 8 heads of 128 in a model of hidden size 64."""
    config = tiny.target_config(
        "31b", sliding_window=16, head_dim=64, global_head_dim=128, num_key_value_heads=4, num_global_key_value_heads=4
    )
    return tiny.build_target(config)


@pytest.mark.parametrize("compiled", [False, True])
def test_decoding_copies_no_buffer(wide_model, compiled):
    """Peak memory of many rounds stays within 5 % of the key-value buffers over what is held before them."""
    model, prompt, tokens = wide_model, ids(4000), 30
    drafter = tiny.ScriptedDrafter(prompt + ids(tokens), [i % 2 == 0 for i in range(len(prompt) + tokens)], 128)
    cache = model.make_cache()
    round = CompiledRound(model, drafter) if compiled else Round(model, drafter)
    stream = iter(TokenStream(round, cache, prompt, max_tokens=tokens, depth=FixedDepth(3), prefill_step_size=256))
    for _ in range(8):
        next(stream)
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    held = mx.get_active_memory()
    assert sum(1 for _ in stream) == tokens - 8
    extra = mx.get_peak_memory() - held
    assert cache.nbytes > 8_000_000
    assert extra <= 0.05 * cache.nbytes, f"{extra:,} bytes beside {cache.nbytes:,} bytes of keys and values"


def test_thousands_of_rounds_neither_grow_memory_nor_the_graph(model):
    drafter = tiny.ScriptedDrafter([0] * 8, True, 128)
    cache = model.make_cache()
    cache.reserve(1500)
    cache.written = 0
    stream = iter(TokenStream(CompiledRound(model, drafter), cache, ids(20), max_tokens=1200, depth=FixedDepth(2)))
    for _ in range(100):
        next(stream)
    mx.synchronize()
    before = mx.get_active_memory()
    for _ in range(1000):
        next(stream)
    mx.synchronize()
    assert mx.get_active_memory() <= before + 100_000


def test_growing_that_fails_half_way_goes_on_the_next_time(model, monkeypatch):
    """Rows are written without a check of bounds: a capacity that only some buffers have would wrap their writes."""
    cache, prompt = model.make_cache(), ids(CAPACITY_STEP - 2)
    steps = generate_step(prompt, model, max_tokens=12, prompt_cache=cache)
    emitted, grow = [next(steps)[0]], LayerCache.grow

    def fail_at_the_second(layer, capacity, like):
        if layer is cache[5]:
            raise MemoryError
        grow(layer, capacity, like)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(LayerCache, "grow", fail_at_the_second)
        for token, _, _ in steps:
            emitted.append(token)
    rest = generate_step(emitted[-1:], model, max_tokens=12 - len(emitted), prompt_cache=cache)
    assert emitted + [token for token, _, _ in rest] == [t for t, _, _ in generate_step(prompt, model, max_tokens=12)]


def test_a_prompt_interrupted_in_a_chunk_says_what_is_left_of_the_cache(model, monkeypatch):
    """A chunk longer than the rings' reserve overwrites them layer by layer, before it counts."""
    prompt, more = ids(60), ids(80, seed=1)
    cache = model.make_cache()
    list(generate_step(prompt, model, max_tokens=1, prompt_cache=cache))
    write = LayerCache.write

    def interrupt_the_third_layer(layer, *arrays):
        if layer is cache[3]:
            raise KeyboardInterrupt
        write(layer, *arrays)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LayerCache, "write", interrupt_the_third_layer)
        list(generate_step(more, model, prompt_cache=cache))
    rest = (prompt + more)[cache.offset :]
    warm = [token for token, _, _ in generate_step(rest, model, max_tokens=12, prompt_cache=cache)]
    assert warm == [token for token, _, _ in generate_step(prompt + more, model, max_tokens=12)]
