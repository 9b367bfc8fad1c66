"""The clustered head: candidates come from the best clusters, ties go to the lowest id, nothing else is computed."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mtp_mlx.models.clustered_head import ClusteredHead

HIDDEN, VOCAB, CENTROIDS = 64, 96, 12
SIZE = VOCAB // CENTROIDS


def make_head(top_k: int) -> tuple[ClusteredHead, nn.Embedding]:
    random = np.random.RandomState(0)
    head, embedding = ClusteredHead(HIDDEN, VOCAB, CENTROIDS, top_k), nn.Embedding(VOCAB, HIDDEN)
    head.centroids.weight = mx.array(random.standard_normal((CENTROIDS, HIDDEN)), mx.float32)
    head.token_ordering = mx.array(random.permutation(VOCAB).astype(np.int32))
    embedding.weight = mx.array(random.standard_normal((VOCAB, HIDDEN)), mx.float32)
    return head, embedding


def hidden_states(*shape: int) -> mx.array:
    return mx.array(np.random.RandomState(1).standard_normal((*shape, HIDDEN)), mx.float32)


def best_clusters(head: ClusteredHead, h: mx.array) -> list[int]:
    """By the definition, in numpy."""
    scores = np.array(head.centroids.weight) @ np.array(h)
    return np.argsort(scores)[-head.top_k :].tolist()


def test_candidates_are_the_tokens_of_the_best_clusters():
    head, embedding = make_head(top_k=3)
    h = hidden_states(5)
    ids, logits = head.candidates(h, embedding)
    assert ids.shape == logits.shape == (5, 3 * SIZE)
    ordering = np.array(head.token_ordering).reshape(CENTROIDS, SIZE)
    for row in range(5):
        expected = {int(i) for cluster in best_clusters(head, h[row]) for i in ordering[cluster]}
        assert set(ids[row].tolist()) == expected
        full = embedding.as_linear(h[row])
        assert mx.allclose(logits[row], full[ids[row]], atol=1e-5)


@pytest.mark.parametrize("top_k", [1, 3, CENTROIDS])
@pytest.mark.parametrize("shape", [(), (1,), (2, 1), (2, 3)])
def test_argmax_is_the_best_candidate(top_k, shape):
    head, embedding = make_head(top_k)
    h = hidden_states(*shape)
    ids, logits = head.candidates(h, embedding)
    best = mx.take_along_axis(ids, mx.argmax(logits, axis=-1, keepdims=True), axis=-1).squeeze(-1)
    chosen = head.argmax(h, embedding)
    assert chosen.shape == shape
    assert mx.array_equal(chosen, best)
    assert mx.array_equal(chosen, mx.argmax(head.dense(h, embedding), axis=-1))


def test_all_clusters_equal_the_full_head():
    head, embedding = make_head(top_k=CENTROIDS)
    h = hidden_states(2, 3)
    assert mx.allclose(head.dense(h, embedding), embedding.as_linear(h), atol=1e-5)


def test_dense_marks_everything_else_one_below_the_lowest():
    head, embedding = make_head(top_k=2)
    h = hidden_states(1)
    ids, logits = head.candidates(h, embedding)
    dense = head.dense(h, embedding)[0]
    rest = sorted(set(range(VOCAB)) - set(ids[0].tolist()))
    assert len(rest) == VOCAB - 2 * SIZE
    assert mx.array_equal(dense[mx.array(rest)], mx.full(len(rest), logits.min() - 1))
    assert mx.array_equal(dense[ids[0]], logits[0])


def test_ties_go_to_the_lowest_id():
    head, embedding = make_head(top_k=4)
    embedding.weight = mx.ones_like(embedding.weight)
    h = hidden_states(6)
    ids, _ = head.candidates(h, embedding)
    assert mx.array_equal(head.argmax(h, embedding), ids.min(axis=-1))


def test_ids_beyond_sixteen_bits_stay_exact_in_bfloat16():
    """Ids that pass through the dtype of the logits would be rounded."""
    vocab = 70_000
    head, embedding = ClusteredHead(32, vocab, 70, 1), nn.Embedding(vocab, 32)
    embedding.set_dtype(mx.bfloat16)
    head.centroids.set_dtype(mx.bfloat16)
    wanted = 69_123
    embedding.weight[wanted] = 5.0
    head.centroids.weight[wanted // 1000] = 5.0
    assert head.argmax(mx.ones((1, 32), mx.bfloat16), embedding).item() == wanted


def test_quantized_embedding_gives_the_dequantized_rows():
    head, embedding = make_head(top_k=3)
    quantized = embedding.to_quantized(group_size=32, bits=8)
    plain = nn.Embedding(VOCAB, HIDDEN)
    plain.weight = mx.dequantize(
        quantized.weight, quantized.scales, quantized.biases, group_size=quantized.group_size, bits=quantized.bits
    )
    h = hidden_states(2, 1)
    ids, logits = head.candidates(h, quantized)
    expected_ids, expected = head.candidates(h, plain)
    assert mx.array_equal(ids, expected_ids)
    assert mx.allclose(logits, expected, atol=1e-5)


def test_nothing_of_vocabulary_size_is_computed():
    """Peak memory of a draft's choice at E2B's sizes: a few candidates' rows, not a row of 262,144 logits a step."""
    vocab, hidden, steps = 262_144, 8, 64
    head, embedding = ClusteredHead(hidden, vocab, 2048, 32), nn.Embedding(vocab, hidden)
    h = hidden_states(steps)[:, :hidden]
    mx.eval(head.parameters(), embedding.parameters(), h)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(head.argmax(h, embedding))
    used = mx.get_peak_memory() - before
    assert used < steps * vocab * 4 / 4  # a quarter of the dense logits
