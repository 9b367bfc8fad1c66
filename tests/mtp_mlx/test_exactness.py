"""Exact decoding: which widths agree is measured, rows are padded to them, and the bits are those of plain decoding."""

import subprocess
import sys
from importlib import import_module

import mlx.core as mx
import pytest

from mtp_mlx import generate_step
from mtp_mlx.decoding import widths as widths_module
from mtp_mlx.decoding.widths import Widths, exact_widths, price_of
from mtp_mlx.errors import MisuseError, UserError
from mtp_mlx.exactness import exact_way, measure_kinds
from mtp_mlx.models.gemma4 import MLP
from tests.tiny import ARCHITECTURES, ScriptedDrafter, build_drafter, build_target, drafter_config, target_config

generate_module = import_module("mtp_mlx.generate")  # beside the function of that name
PROMPT = [2, *range(20, 40)]
PADDED = Widths((3, 3, 3, 5, 5))


@pytest.fixture(scope="module")
def target():
    return build_target(target_config("e2b"))


def decode(model, drafter=None, **options) -> tuple[list[int], mx.array]:
    steps = list(generate_step(PROMPT, model, draft_model=drafter, max_tokens=40, **options))
    return [token for token, _, _ in steps], mx.stack([logprobs for _, logprobs, _ in steps])


def same(one: tuple[list[int], mx.array], other: tuple[list[int], mx.array]) -> bool:
    return one[0] == other[0] and mx.array_equal(one[1], other[1]).item()


def test_with_the_reference_blas_all_widths_agree_and_exactness_is_free(target):
    assert exact_widths(target, 256).computed == tuple(range(1, 10))
    assert exact_widths(target, 256, 3).computed == (1, 2, 3, 4)
    way = exact_way(target, 100, "auto")
    assert (way.is_free, way.price) == (True, 1.0)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("drafts", [2, 4, "auto"])
def test_padded_rows_change_nothing(name, drafts, monkeypatch):
    model = build_target(target_config(name))
    expected = decode(model)
    monkeypatch.setattr(generate_module, "exact_widths", lambda *arguments: PADDED)
    ids = PROMPT + expected[0]
    mixed = ScriptedDrafter(ids, [n % 3 == 0 for n in range(len(ids))], model.config.vocab_size)
    own = build_drafter(drafter_config(target_config(name), clustered=True))
    for drafter in (None, mixed, own):
        assert same(decode(model, drafter, num_draft_tokens=drafts, exact=True), expected)


def test_padded_rows_leave_the_cache_as_it_should_be(target, monkeypatch):
    monkeypatch.setattr(generate_module, "exact_widths", lambda *arguments: PADDED)
    right = ScriptedDrafter(PROMPT + decode(target)[0], False, target.config.vocab_size)
    cache = target.make_cache()
    options = {"prompt_cache": cache, "exact": True, "num_draft_tokens": 4}
    first = [token for token, _, _ in generate_step(PROMPT, target, draft_model=right, max_tokens=17, **options)]
    assert cache.offset == len(PROMPT) + 16
    rest = [token for token, _, _ in generate_step(first[-1:], target, draft_model=right, max_tokens=23, **options)]
    assert first + rest == decode(target)[0]


def test_auto_never_drafts_more_than_the_widths_allow(target, monkeypatch):
    monkeypatch.setattr(generate_module, "exact_widths", lambda *arguments: Widths((1, 2)))
    right = ScriptedDrafter(PROMPT + decode(target)[0], False, target.config.vocab_size)
    steps = generate_step(PROMPT, target, draft_model=right, max_tokens=40, exact=True)
    in_a_row = "".join("d" if from_draft else "-" for _, _, from_draft in steps)
    assert "d" in in_a_row and "dd" not in in_a_row


def test_exact_decoding_needs_a_limit(target):
    with pytest.raises(MisuseError, match="exact decoding needs a limit .*max_tokens -1"):
        next(generate_step(PROMPT, target, max_tokens=-1, exact=True))


def classes(*groups: tuple[int, ...]):
    """Rows that agree within a group of widths and differ between groups."""

    def run(probe, arrays, start, width):
        group = next(n for n, group in enumerate(groups) if width in group)
        return mx.arange(start, start + width)[:, None] + 100 * group, arrays

    return run


@pytest.mark.parametrize(
    ("groups", "drafts", "computed"),
    [
        ([range(1, 10)], "auto", tuple(range(1, 10))),
        ([(1,), range(2, 10)], "auto", (2, 2, 3, 4, 5, 6, 7, 8, 9)),
        ([(1, 2, 3, 4), range(5, 10)], "auto", (1, 2, 3, 4)),  # ordinary plain decoding is preferred
        ([(1, 2), (3, 4), (5, 6, 7), (8, 9)], "auto", (5, 5, 5, 5, 5, 6, 7)),  # but not to a single draft
        ([(1, 2), (3, 4), (5, 6, 7), (8, 9)], 2, (3, 3, 3)),
        ([(1, 2), (3, 4), (5, 6, 7), (8, 9)], 7, (8, 8, 8, 8, 8, 8, 8, 8)),
    ],
)
def test_the_widths_that_agree_are_found(groups, drafts, computed, monkeypatch):
    monkeypatch.setattr(widths_module._Probe, "run", classes(*groups))
    assert exact_widths(build_target(target_config("31b")), 256, drafts).computed == computed


def test_no_width_is_exact_where_rows_depend_on_their_place(monkeypatch):
    monkeypatch.setattr(widths_module._Probe, "run", lambda probe, arrays, start, width: (mx.arange(width), arrays))
    with pytest.raises(UserError, match="cannot be exact; decode with --no-draft"):
        exact_widths(build_target(target_config("31b")), 256)


def test_the_price_is_a_ratio_of_times(target):
    assert price_of(target, PADDED, 256) > 0
    assert price_of(target, Widths((1, 2, 3)), 256) == 1.0


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_kind_of_layer_is_measured_by_itself(name):
    model = build_target(target_config(name))
    kinds = {kind.name: kind for kind in measure_kinds(model, PROMPT, 5)}
    expected = {
        ("" if layer.owns_kv else "KV-shared ") + layer.layer_type.split("_")[0] for layer in model.config.layers
    }
    assert kinds.keys() - {"head", "per-layer embeddings"} == expected
    assert ("per-layer embeddings" in kinds) == (name in ("e2b", "e4b"))
    assert sum(kind.layers for kind in kinds.values()) >= len(model.layers) + 1
    assert all(kind.is_exact and kind.largest == 0.0 for kind in kinds.values())


def test_a_layer_that_depends_on_the_width_is_found_out_alone(target, monkeypatch):
    """Only MLPs of KV-shared layers are twice as wide in this model."""
    compute = MLP.__call__

    def width_dependent(self, x):
        is_wide = self.gate_proj.weight.shape[0] == 2 * target.config.layers[0].intermediate_size
        return compute(self, x + 1e-2 * (is_wide and x.shape[1] > 2))

    monkeypatch.setattr(MLP, "__call__", width_dependent)
    kinds = {kind.name: kind for kind in measure_kinds(target, PROMPT, 5)}
    assert {name for name, kind in kinds.items() if not kind.is_exact} == {"KV-shared sliding", "KV-shared full"}
    assert kinds["KV-shared full"].differs == (3, 4, 5)
    assert kinds["KV-shared full"].unlike_widest == (2,)
    assert 1e-6 < kinds["KV-shared full"].largest < 1e-2


WITH_OPENBLAS = """
import sys
import mtp_weights
import mlx.core as mx
from mtp_mlx import generate_step, load, load_drafter
if mtp_weights.BLAS.name != "openblas":
    sys.exit(5)
model, tokenizer = load("demo")
drafter = load_drafter("auto", model)
for text in ("And it came to pass", "def main(argv):"):
    for drafts in ("auto", 3, 5):
        options = {"num_draft_tokens": drafts, "max_tokens": 60, "exact": True}
        ids = tokenizer.encode(text)
        runs = [list(generate_step(ids, model, draft_model=each, **options)) for each in (None, drafter)]
        assert [step[0] for step in runs[0]] == [step[0] for step in runs[1]], (text, drafts)
        assert all(mx.array_equal(a[1], b[1]).item() for a, b in zip(*runs)), (text, drafts)
        assert any(step[2] for step in runs[1]), (text, drafts)
"""


def test_with_openblas_the_bits_are_the_same_with_a_drafter_and_without():
    result = subprocess.run([sys.executable, "-c", WITH_OPENBLAS], capture_output=True, text=True)
    if result.returncode == 5:
        pytest.skip("no OpenBLAS here")
    assert result.returncode == 0, result.stderr
