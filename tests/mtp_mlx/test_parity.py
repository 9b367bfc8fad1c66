"""Forward passes, drafts and greedy text equal those of transformers (goldens) and mlx-lm (run here), in float32."""

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step as mlx_lm_generate_step
from mlx_lm.utils import load_model as mlx_lm_load_model

from mtp_mlx import draft_tokens, generate_step
from mtp_mlx.decoding.prefill import prefill
from mtp_mlx.steps import DraftStep
from tests.reference.cases import HEADS, TOLERANCE, Case, case, gap
from tests.reference.names import WITH_GOLDENS
from tests.tiny import GEMMA4, build_target, multimodal, random_weights, target_config, write_checkpoint

PROMPT_LENGTH = 20  # of the greedy golden


@pytest.fixture(params=WITH_GOLDENS)
def parity(request: pytest.FixtureRequest) -> Case:
    return case(request.param)


def test_goldens_cover_more_than_the_window(parity):
    assert len(parity.ids) >= 2 * (parity.target.config.sliding_window or 24)
    assert parity.golden["logits"].max().item() > 10
    assert len(set(parity.golden["greedy"].tolist())) > 20


def test_whole_sequence(parity):
    hidden = parity.target.model(mx.array([parity.ids]))
    assert gap(hidden[0], parity.golden["hidden"]) < TOLERANCE
    assert gap(parity.target.logits(hidden)[0], parity.golden["logits"]) < TOLERANCE


@pytest.mark.parametrize("chunk", [1, 7, 19, 48])
def test_through_the_cache(parity, chunk):
    """Chunks of 1 and 7 go through the rings as verification does, longer ones as prefill does."""
    ids, cache = mx.array([parity.ids]), parity.target.make_cache()
    chunks = [parity.target.model(ids[:, i : i + chunk], cache) for i in range(0, ids.shape[1], chunk)]
    hidden = mx.concatenate(chunks, axis=1)
    assert gap(hidden[0], parity.golden["hidden"]) < TOLERANCE
    assert gap(parity.target.logits(hidden)[0], parity.golden["logits"]) < TOLERANCE


@pytest.mark.parametrize("chunk", [1, 5, 20, 512])
def test_prefill_gives_the_last_hidden_state(parity, chunk):
    for length in parity.golden["prompt_lengths"].tolist():
        hidden = prefill(parity.target, mx.array([parity.ids[:length]]), parity.target.make_cache(), chunk)
        assert gap(hidden[0, 0], parity.golden["hidden"][length - 1]) < TOLERANCE


@pytest.mark.parametrize("head", HEADS)
def test_drafter_logits_and_projected_hidden_state(parity, head):
    drafter = parity.drafter(head)
    for row, length in enumerate(parity.golden["prompt_lengths"].tolist()):
        cache = parity.target.make_cache()
        hidden = parity.target.model(mx.array([parity.ids[:length]]), cache)[:, -1:]
        step, tokens = DraftStep(cache), parity.golden[f"{head}.tokens"][row]
        for i, token in enumerate(tokens[:-1]):
            h, hidden = drafter.step(parity.target, token.reshape(1, 1), hidden, step)
            assert gap(drafter.logits(h)[0, 0], parity.golden[f"{head}.logits"][row, i]) < TOLERANCE
            assert gap(hidden[0, 0], parity.golden[f"{head}.projected"][row, i]) < TOLERANCE


@pytest.mark.parametrize("head", HEADS)
def test_draft_sequences(parity, head):
    drafter = parity.drafter(head)
    for row, length in enumerate(parity.golden["prompt_lengths"].tolist()):
        first, drafts = draft_tokens(parity.target, drafter, parity.ids[:length], num_draft_tokens=5)
        assert [first, *drafts] == parity.golden[f"{head}.tokens"][row].tolist()


@pytest.mark.parametrize("head", [None, "clustered"])
def test_greedy_text_equals_transformers(parity, head):
    drafter = None if head is None else parity.drafter(head)
    expected = parity.golden["greedy"].tolist()
    prompt = parity.ids[:PROMPT_LENGTH]
    steps = generate_step(prompt, parity.target, draft_model=drafter, num_draft_tokens=4, max_tokens=len(expected))
    assert [token for token, _, _ in steps] == expected


def test_greedy_text_equals_mlx_lm(parity, tmp_path):
    expected = parity.golden["greedy"].tolist()
    config = target_config(parity.name)
    checkpoint = config, random_weights(build_target(config))
    if parity.name in GEMMA4:  # mlx-lm knows the 12B's text model only inside its multimodal one
        checkpoint = multimodal(*checkpoint)
    model, _ = mlx_lm_load_model(write_checkpoint(tmp_path / "target", *checkpoint), lazy=True)
    model.set_dtype(mx.float32)
    steps = mlx_lm_generate_step(mx.array(parity.ids[:PROMPT_LENGTH]), model, max_tokens=len(expected))
    assert [token for token, _ in steps] == expected
