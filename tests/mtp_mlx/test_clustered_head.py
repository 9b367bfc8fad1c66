"""The clustered head: candidates come from the best clusters, ties go to the lowest id, nothing else is computed."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mtp_mlx.models.clustered_head import ClusteredHead

HIDDEN, VOCAB, CENTROIDS = 64, 96, 12
SIZE = VOCAB // CENTROIDS
SHAPES = [(), (1,), (2, 1), (2, 3)]


def make_head(top_k: int, dtype: mx.Dtype = mx.float32) -> tuple[ClusteredHead, nn.Embedding]:
    """A head, and a table in vocabulary order."""
    random = np.random.RandomState(0)
    head, embedding = ClusteredHead(HIDDEN, VOCAB, CENTROIDS, top_k), nn.Embedding(VOCAB, HIDDEN)
    head.centroids.weight = mx.array(random.standard_normal((CENTROIDS, HIDDEN)), dtype)
    head.token_ordering = mx.array(random.permutation(VOCAB).astype(np.int32))
    embedding.weight = mx.array(random.standard_normal((VOCAB, HIDDEN)), dtype)
    return head, embedding


def in_cluster_order(embedding: nn.Module, head: ClusteredHead) -> nn.Module:
    """The same table as the head reads it."""
    if isinstance(embedding, nn.QuantizedEmbedding):
        mode = embedding.group_size, embedding.bits, embedding.mode
        ordered = nn.QuantizedEmbedding(VOCAB, HIDDEN, *mode)
    else:
        ordered = nn.Embedding(VOCAB, HIDDEN)
    ordered.update({name: rows[head.token_ordering] for name, rows in embedding.parameters().items()})
    return ordered


def hidden_states(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(np.random.RandomState(1).standard_normal((*shape, HIDDEN)), dtype)


def best_clusters(head: ClusteredHead, h: mx.array) -> list[int]:
    """By the definition, in numpy."""
    scores = np.array(head.centroids.weight) @ np.array(h)
    return np.argsort(scores)[-head.top_k :].tolist()


def plain_logits(ids: mx.array, h: mx.array, embedding: nn.Module) -> mx.array:
    """The reference: the rows of `ids` [..., n], from the table in vocabulary order, times `h` [..., D]."""
    return (embedding(ids).astype(mx.float32) @ h.astype(mx.float32)[..., None]).squeeze(-1)


def test_candidates_are_the_tokens_of_the_best_clusters():
    head, embedding = make_head(top_k=3)
    h = hidden_states(5)
    ids, logits = head.candidates(h, in_cluster_order(embedding, head))
    assert ids.shape == logits.shape == (5, 3 * SIZE)
    ordering = np.array(head.token_ordering).reshape(CENTROIDS, SIZE)
    for row in range(5):
        expected = {int(i) for cluster in best_clusters(head, h[row]) for i in ordering[cluster]}
        assert set(ids[row].tolist()) == expected
        full = embedding.as_linear(h[row])
        assert mx.allclose(logits[row], full[ids[row]], atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize(
    "quantized",
    [
        None,
        {"group_size": 32, "bits": 4},
        {"group_size": 64, "bits": 8},
        {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    ],
)
def test_logits_equal_those_of_gathered_rows(quantized, dtype, shape):
    head, embedding = make_head(top_k=3, dtype=dtype)
    if quantized:
        embedding = embedding.to_quantized(**quantized)
    h = hidden_states(*shape, dtype=dtype)
    ordered = in_cluster_order(embedding, head)
    ids, logits = head.candidates(h, ordered)
    expected = plain_logits(ids, h, embedding)
    assert logits.dtype == dtype
    tolerance = 1e-4 if dtype == mx.float32 else 0.02 * mx.abs(expected).max().item()
    assert mx.abs(logits - expected).max().item() < tolerance
    chosen = head.argmax(h, ordered)
    assert chosen.shape == shape
    best = mx.take_along_axis(logits, mx.argmax(ids == chosen[..., None], axis=-1, keepdims=True), axis=-1)
    assert mx.array_equal(best.squeeze(-1), logits.max(axis=-1))


@pytest.mark.parametrize("top_k", [1, 3, CENTROIDS])
@pytest.mark.parametrize("shape", SHAPES)
def test_argmax_is_the_best_candidate(top_k, shape):
    head, embedding = make_head(top_k)
    ordered = in_cluster_order(embedding, head)
    h = hidden_states(*shape)
    ids, _ = head.candidates(h, ordered)
    logits = plain_logits(ids, h, embedding)
    best = mx.take_along_axis(ids, mx.argmax(logits, axis=-1, keepdims=True), axis=-1).squeeze(-1)
    chosen = head.argmax(h, ordered)
    assert mx.array_equal(chosen, best)
    assert mx.array_equal(chosen, mx.argmax(head.dense(h, ordered), axis=-1))


def test_all_clusters_equal_the_full_head():
    head, embedding = make_head(top_k=CENTROIDS)
    h = hidden_states(2, 3)
    assert mx.allclose(head.dense(h, in_cluster_order(embedding, head)), embedding.as_linear(h), atol=1e-5)


def test_dense_marks_everything_else_one_below_the_lowest():
    head, embedding = make_head(top_k=2)
    ordered = in_cluster_order(embedding, head)
    h = hidden_states(1)
    ids, logits = head.candidates(h, ordered)
    dense = head.dense(h, ordered)[0]
    rest = sorted(set(range(VOCAB)) - set(ids[0].tolist()))
    assert len(rest) == VOCAB - 2 * SIZE
    assert mx.array_equal(dense[mx.array(rest)], mx.full(len(rest), logits.min() - 1))
    assert mx.array_equal(dense[ids[0]], logits[0])


def test_ties_go_to_the_lowest_id():
    head, embedding = make_head(top_k=4)
    embedding.weight = mx.ones_like(embedding.weight)
    h = mx.round(4 * hidden_states(6))  # whole numbers: their sum is the same in any order
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


def memory_of_a_choice(embedding: nn.Module, h: mx.array, head: ClusteredHead) -> int:
    """Bytes that `argmax` needs at its peak, beside what is there before it."""
    mx.eval(head.parameters(), embedding.parameters(), h)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(head.argmax(h, embedding))
    return mx.get_peak_memory() - before


def test_nothing_of_vocabulary_size_is_computed():
    """Peak memory of a draft's choice at E2B's sizes: a few candidates' rows, not a row of 262,144 logits a step."""
    vocab, hidden, steps = 262_144, 8, 64
    head, embedding = ClusteredHead(hidden, vocab, 2048, 32), nn.Embedding(vocab, hidden)
    used = memory_of_a_choice(embedding, hidden_states(steps)[:, :hidden], head)
    assert used < steps * vocab * 4 / 4  # a quarter of the dense logits


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_the_table_is_never_copied_or_converted(dtype, bits):
    """Also where hidden states are float32 and the table is not."""
    vocab, hidden = 65_536, 64
    head, embedding = ClusteredHead(hidden, vocab, 512, 2), nn.Embedding(vocab, hidden)
    embedding.set_dtype(dtype)
    table = embedding.to_quantized(group_size=64, bits=bits) if bits else embedding
    used = memory_of_a_choice(table, hidden_states(1, 1)[..., :hidden], head)
    assert used < vocab  # one byte a token
