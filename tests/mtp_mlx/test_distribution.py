"""Speculative sampling draws from the target's own distribution, whatever is proposed, from whichever head.

A vocabulary of eight tokens lets plain decoding's exact probabilities at the first five places be computed, over all
8^4 beginnings, with mlx-lm's own filters. Thousands of slots draw side by side, and a chi-square test compares. Run
over all cases with `pytest tests/mtp_mlx/test_distribution.py --all-distributions`.
"""

import itertools
import math
import zlib
from dataclasses import dataclass
from functools import cache

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from mtp_mlx.decoding.acceptance import Coupled, Rejection
from mtp_mlx.decoding.prefill import prefill
from mtp_mlx.decoding.round import Round
from mtp_mlx.decoding.sampling import Controls, Filters, Sampling, distribution, draw, log_softmax
from mtp_mlx.models.config import FULL, SLIDING
from mtp_mlx.models.drafter import Drafter
from mtp_mlx.sampler import make_sampler
from tests import tiny

VOCABULARY, DRAFTS, PLACES = 8, 3, (1, 2, 3, 5)
PROMPT = [3, 1, 4, 1, 5, 0, 2, 6]
SLOTS, BATCHES = 4096, 5  # 20,480 draws
TEMPERATURES = (0.7, 1.0, 1.5)
FILTERS = {
    "none": {},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.15},
    "all": {"top_k": 6, "top_p": 0.9, "min_p": 0.05},
}
DRAFTERS = ("good", "random", "adversarial")
CANDIDATES = {"full": None, "clustered": 3}
RULES = {"rejection": Rejection, "coupled": Coupled}
QUICK = [
    ("rejection", 1.0, "none", "clustered", "good"),
    ("rejection", 1.5, "all", "full", "random"),
    ("rejection", 0.7, "top_p", "clustered", "adversarial"),
    ("coupled", 1.0, "all", "clustered", "random"),
    ("coupled", 0.7, "none", "full", "good"),
]
# With this many honest tests, the smallest p-value is below this once in ten thousand runs.
ALARM = 1e-4


@cache
def target() -> tiny.Target:
    """As small as it can be: a few hundred thousand tokens go through it."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "head_dim": 8, "global_head_dim": 8}
    layers = {"layer_types": [SLIDING, FULL], "sliding_window": 6, "num_global_key_value_heads": None}
    return tiny.build_target(tiny.target_config("31b", vocab_size=VOCABULARY, **sizes, **layers))


@cache
def contexts(length: int) -> np.ndarray:
    """Every beginning of `length` tokens [8^length, length]."""
    return np.array(list(itertools.product(range(VOCABULARY), repeat=length)), np.int32).reshape(
        VOCABULARY**length, length
    )


@cache
def logits_after(length: int) -> mx.array:
    """The target's logits after the prompt and each beginning of `length` tokens [8^length, V]."""
    rows = np.concatenate([np.tile(PROMPT, (VOCABULARY**length, 1)), contexts(length)], axis=1)
    parts = [target()(mx.array(part))[:, -1] for part in np.array_split(rows, max(1, len(rows) // 2000))]
    return mx.concatenate(parts)


def mlx_lm_distribution(logits: mx.array, temp: float, top_p: float = 0, min_p: float = 0, top_k: int = 0) -> mx.array:
    """What mlx-lm's sampler draws from, by its own filters in its own order."""
    logprobs = log_softmax(logits)
    logprobs = apply_top_p(logprobs, top_p) if top_p else logprobs
    logprobs = apply_min_p(logprobs, min_p) if min_p else logprobs
    logprobs = apply_top_k(logprobs, top_k) if top_k else logprobs
    return mx.softmax(logprobs / temp, axis=-1)


@cache
def exact(temp: float, filters: str) -> list[np.ndarray]:
    """Probabilities [V] at the places 1, 2, …: those of all beginnings, weighted with how likely each is."""
    weights, marginals = np.ones(1), []
    for length in range(max(PLACES)):
        following = np.array(mlx_lm_distribution(logits_after(length), temp, **FILTERS[filters]), np.float64)
        joint = weights[:, None] * following
        marginals.append(joint.sum(axis=0))
        weights = joint.reshape(-1)
    return marginals


class TableDrafter(Drafter):
    """Proposes by the last token alone: logits [V, V], of which `candidates` columns a row may be drafted."""

    def __init__(self, kind: str, candidates: int | None):
        super().__init__()
        rng = np.random.default_rng(0)
        known = np.array(logits_after(2)).reshape(VOCABULARY, VOCABULARY, VOCABULARY).mean(axis=0)
        table = {"good": known, "adversarial": -known, "random": rng.normal(size=(VOCABULARY, VOCABULARY))}[kind]
        self.table = mx.array(table.astype(np.float32))
        ids = np.argsort(rng.random(table.shape), axis=1)[:, :candidates]
        self.ids = None if candidates is None else mx.array(ids.astype(np.int32))

    def draft(self, model, cache, token, hidden, num_tokens, pick=None) -> mx.array:
        drafts = [token]
        for _ in range(num_tokens):
            drafts.append(pick(self, drafts[-1]))
        return mx.concatenate(drafts[1:], axis=1)

    def candidates(self, token: mx.array) -> tuple[mx.array | None, mx.array]:
        logits = self.table[token]
        if self.ids is None:
            return None, logits
        return self.ids[token], mx.take_along_axis(logits, self.ids[token], axis=-1)


def drawn(rule: str, drafter: TableDrafter, sampling: Sampling, roots: mx.array) -> np.ndarray:
    """The first tokens [slots, 5] of a slot for each of the root keys [slots, 2]."""
    model, slots = target(), len(roots)
    controls = Controls.of([sampling])._replace(key=roots)
    round = Round(model, drafter, RULES[rule](Filters.of([sampling])))
    cache = model.make_cache(slots=slots, max_draft_tokens=DRAFTS)
    cache.reserve(64)
    hidden = prefill(model, mx.broadcast_to(mx.array([PROMPT]), (slots, len(PROMPT))), cache)
    outcome = round.first(cache, hidden, PROMPT, controls)
    tokens = [[row[1]] for row in outcome.decided.tolist()]
    while min(map(len, tokens)) < max(PLACES):
        state = round.draft(cache, outcome.token, hidden, DRAFTS, controls)
        outcome, hidden = round.verify(cache, state, [], controls)
        for row, (accepted, *ids) in zip(tokens, outcome.decided.tolist(), strict=True):
            row += ids[: accepted + 1]
    return np.array([row[: max(PLACES)] for row in tokens])


def p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Of a chi-square test; tokens that should never come must not, and rare ones are put together."""
    assert not counts[probabilities == 0].any()
    draws = counts.sum()
    order = np.argsort(-probabilities)
    counts, expected = counts[order].astype(float), draws * probabilities[order]
    last = max(0, int((expected >= 5).sum()) - 1)  # rarer ones go with it: the test needs five expected in every bin
    counts = np.append(counts[:last], counts[last:].sum())
    expected = np.append(expected[:last], expected[last:].sum())
    return chi_square_tail(((counts - expected) ** 2 / expected).sum(), len(counts) - 1)


def chi_square_tail(x: float, degrees: int) -> float:
    """P(X > x), by the recurrence over degrees of freedom in steps of two."""
    if degrees == 0:
        return 1.0
    start = 2 - degrees % 2
    tail = math.erfc(math.sqrt(x / 2)) if start == 1 else math.exp(-x / 2)
    for d in range(start, degrees, 2):
        tail += math.exp(d / 2 * math.log(x / 2) - x / 2 - math.lgamma(d / 2 + 1)) if x else 0.0
    return tail


@dataclass
class Case:
    rule: str
    temp: float
    filters: str
    head: str
    drafter: str

    def p_values(self) -> list[float]:
        probabilities = exact(self.temp, self.filters)
        drafter = TableDrafter(self.drafter, CANDIDATES[self.head])
        sampling = make_sampler(self.temp, **FILTERS[self.filters])
        tokens = np.concatenate([drawn(self.rule, drafter, sampling, self.roots(batch)) for batch in range(BATCHES)])
        counts = [np.bincount(tokens[:, place - 1], minlength=VOCABULARY) for place in PLACES]
        return [p_value(c, probabilities[place - 1]) for c, place in zip(counts, PLACES, strict=True)]

    def roots(self, batch: int) -> mx.array:
        """Keys [slots, 2], others for each case: with the same noise their p-values would rise and fall together."""
        seeds = batch * SLOTS + mx.arange(SLOTS, dtype=mx.uint32)
        own = zlib.crc32(f"{self.rule} {self.temp} {self.filters} {self.head} {self.drafter}".encode())
        return mx.stack([mx.full(seeds.shape, own, mx.uint32), seeds], axis=1)


@pytest.mark.parametrize("case", QUICK, ids=lambda case: "-".join(map(str, case)))
def test_draws_are_distributed_as_plain_decoding(case):
    assert min(Case(*case).p_values()) > ALARM


def test_every_combination(request):
    """p-values are uniform where nothing is wrong: no case stands out, and small ones are not too many."""
    if not request.config.getoption("--all-distributions"):
        pytest.skip("takes minutes: --all-distributions")
    cases = itertools.product(RULES, TEMPERATURES, FILTERS, CANDIDATES, DRAFTERS)
    # A place where a single token is possible passes with 1.0 and says nothing.
    values = np.sort([p for case in cases for p in Case(*case).p_values() if p < 1])
    steps = np.arange(1, len(values) + 1) / len(values)
    distance = max(np.abs(values - steps).max(), np.abs(values - steps + 1 / len(values)).max())
    print(
        f"{len(values)} tests: smallest p {values[0]:.2g}, below 0.05 {(values < 0.05).mean():.3f}, KS {distance:.3f}"
    )
    assert values[0] > ALARM / 10
    assert distance < 1.63 / math.sqrt(len(values))  # Kolmogorov-Smirnov at 1 %


@pytest.mark.parametrize("temp", TEMPERATURES)
@pytest.mark.parametrize("filters", FILTERS)
def test_the_distribution_is_mlx_lms(temp, filters):
    logits = logits_after(3)[None]
    row = [make_sampler(temp, **FILTERS[filters])]
    controls = Controls.of(row)
    ours = distribution(logits, Filters.of(row), controls, controls.temp)[0]
    assert mx.abs(ours - mlx_lm_distribution(logits[0], temp, **FILTERS[filters])).max().item() < 1e-5


def test_rows_of_a_batch_have_their_own_values():
    rows = [make_sampler(0.0), make_sampler(1.3), make_sampler(0.7, top_k=3), make_sampler(1.0, top_p=0.6, min_p=0.1)]
    logits = mx.repeat(logits_after(2)[None], len(rows), axis=0)
    controls = Controls.of(rows)
    together = distribution(logits, Filters.of(rows), controls, controls.temp)
    for n, row in enumerate(rows):
        own = Controls.of([row])
        alone = distribution(logits[n : n + 1], Filters.of([row]), own, own.temp)[0]
        assert mx.allclose(together[n], alone, atol=1e-6).item()
    assert mx.array_equal(together[0].argmax(-1), logits[0].argmax(-1)).item()
    assert together[0].max(-1).min().item() == 1.0


def test_draw_never_returns_what_has_no_probability():
    probs = mx.array([0.0, 0.25, 0.0, 0.75, 0.0])
    uniform = mx.array([0.0, 0.2499, 0.2501, 0.999999, 1 - 2.0**-24])
    assert draw(mx.broadcast_to(probs, (5, 5)), uniform).tolist() == [1, 1, 3, 3, 3]
