"""Training a drafter on a frozen target: the vectorized forward, the loss, the clusters, the checkpoint."""

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mtp_mlx.load import load_drafter
from mtp_mlx.models.config import FULL, SLIDING
from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_config import AssistantConfig, TextConfig
from mtp_mlx.steps import DraftStep
from mtp_mlx.training import (
    Batches,
    Objective,
    Rows,
    Trainer,
    continue_prompts,
    new_drafter,
    observe,
    pack,
    save_drafter,
)
from mtp_mlx.training.batches import row_order
from mtp_mlx.training.candidates import draw
from mtp_mlx.training.clusters import cluster_centres, cluster_tokens
from mtp_mlx.training.initialize import principal_directions
from mtp_mlx.training.trainer import linear_decay
from mtp_mlx.training.unroll import unroll

VOCAB, WINDOW = 128, 6
SHAPE = {
    "model_type": "gemma4_text",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": WINDOW,
}
DRAFTER = {
    "model_type": "gemma4_assistant",
    "backbone_hidden_size": 32,
    "use_ordered_embeddings": True,
    "num_centroids": 16,
    "centroid_intermediate_top_k": 16,
    "text_config": {**SHAPE, "hidden_size": 16, "num_hidden_layers": 2, "layer_types": [SLIDING, FULL]},
}


@pytest.fixture
def target() -> Gemma4:
    mx.random.seed(3)
    config = {
        **SHAPE,
        "num_hidden_layers": 4,
        "layer_types": [SLIDING, FULL] * 2,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCAB,
    }
    model = Gemma4(TextConfig.from_dict(config))
    mx.eval(model.parameters())
    return model


@pytest.fixture
def drafter(target):
    return new_drafter(target, AssistantConfig.from_dict(DRAFTER))


def random_rows(count: int, length: int) -> Rows:
    """One document a row."""
    tokens = np.array(mx.random.randint(0, VOCAB, (count, length)))
    return Rows(tokens, np.ones_like(tokens))


def batches(target, drafter, rows, *, steps=3, follow=False, size=None, top_k=2, **options) -> Batches:
    observed = observe(target, rows, top_k=top_k, follow=steps if follow else 0)
    return Batches(observed, drafter, size=size or len(rows), num_steps=steps, seed=0, **options)


def full(batch):
    """The same in float32, as the trainer computes with it."""
    return batch.like(batch.arrays)


@pytest.mark.parametrize("position", ["next", "last_cached"])
@pytest.mark.parametrize("follow", [False, True])
def test_unrolled_anchors_equal_draft_steps_over_a_real_cache(target, drafter, position, follow):
    steps, tokens = 3, mx.random.randint(0, VOCAB, (1, 34))
    rows = pack([tokens[0, :22].tolist(), tokens[0, 22:].tolist()], 34, None)  # two documents in one row
    drafter.draft_position = position
    batch = full(batches(target, drafter, rows, steps=steps, follow=follow)[0])
    states = unroll(drafter, target, batch, steps)
    checked = 0
    for start, end in ((0, 22), (22, 34)):
        for place in range(start, end):
            if place >= states[0].shape[1] or not batch.weights[0, place, -1].item():
                continue
            cache = target.make_cache()
            hidden = target.model(tokens[:, start : place + 1], cache)[:, -1:]
            seen = DraftStep(cache, position)
            for j in range(steps):
                own, hidden = drafter.step(target, batch.read[:, place : place + 1, j], hidden, seen)
                np.testing.assert_allclose(states[j][:, place], own[:, 0], atol=0.02, rtol=0)  # kept in float16
            checked += 1
    assert checked == (34 if follow else 22 - steps + 12 - steps)


def test_followed_choices_are_what_the_target_decodes_from_each_place(target, drafter):
    rows = pack([list(range(3, 20)), list(range(40, 60))], 40, None)
    observed = observe(target, rows, top_k=3, follow=4)
    for place in range(40):
        segment = rows.segments[0, place]
        if not segment:
            continue
        prefix = rows.tokens[0, : place + 1][rows.segments[0, : place + 1] == segment]
        ids = mx.array(prefix)[None]
        for step in range(5):
            logits = target(ids)[0, -1]
            best = mx.argsort(-logits)[:3]
            assert observed.arrays["ids"][0, place, step].tolist() == best.tolist()
            expected = (logits - mx.logsumexp(logits))[best]
            np.testing.assert_allclose(observed.arrays["logprobs"][0, place, step], expected, atol=0.01)
            ids = mx.concatenate([ids, best[None, :1].astype(ids.dtype)], axis=1)


def test_nothing_is_drafted_past_the_end_of_a_document_or_a_stop_id(target, drafter):
    rows = pack([[5, 6, 7, 8, 9, 10], [11, 12, 99, 13, 14, 15]], 14, None)
    observed = observe(target, rows, stop_ids=(99,))
    batch = Batches(observed, drafter, size=1, num_steps=2, seed=0)[0]
    read = batch.read[0].tolist()
    counted = [[read[a][j] for j in range(2) if batch.weights[0, a, j].item()] for a in range(12)]
    assert counted == [[6, 7], [7, 8], [8, 9], [9, 10], [10], [], [12], [], [], [14, 15], [15], []]


def test_training_lets_the_drafter_agree_with_the_target_and_leaves_the_target_alone(target, drafter):
    given = batches(target, drafter, random_rows(16, 24), size=8)
    everything = given.rows(np.arange(16))
    before = [mx.array(array) for _, array in tree_flatten(target.parameters())]
    ordering = mx.array(drafter.masked_embedding.token_ordering)
    trainer = Trainer(drafter, target, Objective(num_steps=3))
    start_loss, start_accepted = trainer.evaluate(everything)
    for step in range(60):
        trainer.step(given[step], step / 60)
    loss, accepted = trainer.evaluate(everything)
    assert loss < 0.5 * start_loss
    assert min(accepted) > 0.8 > 0.4 > max(start_accepted)
    assert trainer.steps == 60
    assert mx.array_equal(drafter.masked_embedding.token_ordering, ordering)
    after = [array for _, array in tree_flatten(target.parameters())]
    assert all(mx.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_loss_over_every_token_drawn_is_the_full_loss(target, drafter):
    rows = random_rows(2, 12)
    whole = full(batches(target, drafter, rows, max_candidates=VOCAB)[0])
    drawn = batches(target, drafter, rows, max_candidates=VOCAB - 1)
    drawn.max_candidates = VOCAB - 1
    sampled = drawn[0]
    assert whole.candidates is None and sampled.candidates is not None
    objective = Objective(num_steps=3, distribution_weight=0.5)
    losses = [objective(drafter, target, batch)[0].item() for batch in (whole, full(sampled))]
    assert losses[0] == pytest.approx(losses[1], rel=0.01)


@pytest.mark.parametrize("size", [24, 48])
def test_drawn_candidates_estimate_the_sum_over_the_vocabulary_without_bias(size):
    logits, labels = np.random.default_rng(0).normal(size=VOCAB), np.array([[3, 7], [3, 90]])
    row_of = np.random.default_rng(1).permutation(VOCAB)
    sums = []
    for n in range(3000):
        places, candidates = draw(labels, row_of, size, np.random.default_rng(n))
        rows = np.array(candidates.rows)
        assert (rows[places] == row_of[labels]).all() and len(set(rows.tolist())) == size
        sums.append(np.exp(logits[rows] + np.array(candidates.raises)).sum())
    error = np.std(sums) / len(sums) ** 0.5
    assert abs(np.mean(sums) - np.exp(logits).sum()) < 4 * error


def test_many_labels_draw_more_candidates():
    places, candidates = draw(np.arange(900), np.arange(5000), 1024, np.random.default_rng(0))
    assert candidates.rows.size == 2048 and (np.array(candidates.rows)[places] == np.arange(900)).all()


def test_cluster_loss_moves_the_centroids_only(target, drafter):
    examples = full(batches(target, drafter, random_rows(2, 12), steps=2)[0])
    drafter.masked_embedding.freeze(keys=["token_ordering"], recurse=False)

    def loss(parameters):
        drafter.update(parameters)
        return Objective(num_steps=2, cluster_weight=1.0)(drafter, target, examples)[0]

    def without(parameters):
        drafter.update(parameters)
        return Objective(num_steps=2, cluster_weight=0.0)(drafter, target, examples)[0]

    parameters = drafter.trainable_parameters()
    pairs = zip(*(tree_flatten(mx.grad(f)(parameters)) for f in (loss, without)), strict=True)
    moved = [name for (name, a), (_, b) in pairs if not mx.allclose(a, b, atol=1e-7)]
    assert moved == ["masked_embedding.centroids.weight"]


def test_the_newest_draft_weighs_least():
    assert Objective(num_steps=4, step_decay=0.5).weights == [1.0, 0.5, 0.25, 0.125]


def test_checkpoint_is_what_load_drafter_reads(target, drafter, tmp_path):
    save_drafter(drafter, DRAFTER, tmp_path / "drafter")
    stored = mx.load(str(tmp_path / "drafter" / "model.safetensors"))
    assert stored["masked_embedding.token_ordering"].dtype == mx.int64
    assert stored["model.layers.1.self_attn.q_proj.weight"].dtype == mx.bfloat16
    table, tokens = stored["model.embed_tokens.weight"], mx.array([3, 77])
    own = drafter.model.embed_tokens(drafter.rows_of(tokens))
    assert mx.array_equal(table[tokens], own.astype(mx.bfloat16))  # in vocabulary order
    loaded = load_drafter(tmp_path / "drafter", target)
    for (name, a), (other, b) in zip(
        tree_flatten(drafter.parameters()), tree_flatten(loaded.parameters()), strict=True
    ):
        assert name == other
        np.testing.assert_array_equal(a.astype(mx.bfloat16).astype(mx.float32), b.astype(mx.float32))


def test_new_drafter_of_the_targets_width_starts_with_its_embedding(target):
    full_width = {**DRAFTER, "text_config": {**DRAFTER["text_config"], "hidden_size": 32}}
    drafter = new_drafter(target, AssistantConfig.from_dict(full_width))
    rows = drafter.rows_of(mx.arange(VOCAB))
    assert mx.array_equal(drafter.model.embed_tokens(rows), target.model.embed_tokens.weight)
    assert mx.array_equal(drafter.post_projection.weight, mx.eye(32))


def test_principal_directions_keep_the_longest_axes():
    table = mx.random.normal((200, 4)) * mx.array([1.0, 9.0, 3.0, 0.1])
    basis = principal_directions(table, 2)
    np.testing.assert_allclose(basis.T @ basis, np.eye(2), atol=1e-5)
    assert mx.argmax(mx.abs(basis), axis=0).tolist() == [1, 2]


def test_clusters_are_equal_and_keep_neighbours_together():
    centres = mx.random.normal((8, 16))
    ids = mx.random.permutation(64)
    points = mx.zeros((64, 16))
    points[ids] = mx.repeat(centres, 8, axis=0) + 0.05 * mx.random.normal((64, 16))
    ordering = cluster_tokens(points, 8)
    assert sorted(ordering.tolist()) == list(range(64))
    groups = [{i // 8 for i in range(64) if ids[i].item() in cluster} for cluster in ordering.reshape(8, 8).tolist()]
    assert all(len(group) == 1 for group in groups)


def test_what_is_used_decides_where_clusters_lie():
    points = mx.random.normal((64, 4))
    assert mx.array_equal(cluster_tokens(points, 4, mx.full((64,), 7.0)), cluster_tokens(points, 4))
    usage = mx.zeros(64)
    usage[:4] = 1e6
    ordering = cluster_tokens(points, 4, usage)
    assert sorted(ordering.tolist()) == list(range(64))
    centres = cluster_centres(points, ordering, 4, usage)
    for cluster, centre in zip(ordering.reshape(4, 16).tolist(), centres, strict=True):
        used = [token for token in cluster if token < 4]
        if used:
            np.testing.assert_allclose(centre, points[mx.array(used)].mean(axis=0), atol=0.1)


@pytest.mark.parametrize("clusters", [3, 128])
def test_clusters_need_a_power_of_two_that_divides_the_vocabulary(clusters):
    with pytest.raises(ValueError, match=f"power of two that divides 64: {clusters}"):
        cluster_tokens(mx.random.normal((64, 4)), clusters)


def test_continuations_are_greedy_at_temperature_0_and_sampled_above(target):
    prompts = mx.random.randint(0, VOCAB, (2, 9))
    temperatures = mx.concatenate([mx.zeros((2, 10)), mx.full((2, 10), 5.0)], axis=1)
    rows = continue_prompts(target, prompts, temperatures)
    assert rows.shape == (2, 29) and mx.array_equal(rows[:, :9], prompts)
    choices = mx.argmax(target(rows), axis=-1)
    assert mx.array_equal(rows[:, 9:19], choices[:, 8:18])
    assert (rows[:, 19:] == choices[:, 18:-1]).mean() < 0.5
    again = continue_prompts(target, prompts, temperatures)
    assert mx.array_equal(again[:, :19], rows[:, :19]) and not mx.array_equal(again, rows)


def test_batches_cover_every_row_once_before_any_comes_again():
    order = row_order(10, 0, 10, seed=1).tolist()
    assert sorted(order) == list(range(10))
    assert row_order(10, 3, 4, seed=1).tolist() == order[3:7]
    assert sorted(row_order(10, 10, 10, seed=1).tolist()) == list(range(10))
    assert row_order(10, 8, 4, seed=1).tolist()[:2] == order[8:]


def test_rate_falls_to_nothing_at_the_end():
    assert [linear_decay(p, 0.4) for p in (0.0, 0.6, 0.8, 1.0)] == pytest.approx([1.0, 1.0, 0.5, 0.0])
