"""One greedy step of the drafter's head at E2B's real width: full head, our clustered head, mlx-vlm's clustered head.

Hidden 256, vocabulary 262,144 in 2,048 clusters of 128, of which 32 are scored; random weights, one hidden state a
step. Also with a 4-bit table, which mlx-vlm's head cannot read. Memory shows that nothing of vocabulary size is built:
a step needs no more when the vocabulary, at the same size of cluster, is twice as large.
"""

import time
from collections.abc import Callable
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
from mlx_vlm.speculative.drafters.gemma4_assistant.masked_embedder import MaskedEmbedder

from benchmarks.figures import Figure, parser, ratio, report
from mtp_mlx.models.clustered_head import ClusteredHead

HIDDEN, VOCABULARY, CENTROIDS, TOP_K = 256, 262_144, 2_048, 32
Step = Callable[[mx.array], mx.array]


def random_head(vocabulary: int, centroids: int) -> tuple[ClusteredHead, nn.Embedding]:
    """Our head and its embedding table, in cluster order, float32."""
    head, table = ClusteredHead(HIDDEN, vocabulary, centroids, TOP_K), nn.Embedding(vocabulary, HIDDEN)
    head.token_ordering = mx.random.permutation(vocabulary).astype(mx.int32)
    table.weight = mx.random.normal((vocabulary, HIDDEN))
    mx.eval(head.parameters(), table.parameters())
    return head, table


def mlx_vlm_step(head: ClusteredHead, table: nn.Embedding) -> Step:
    """mlx-vlm's head with the same weights; its table lies in vocabulary order."""
    theirs = MaskedEmbedder(
        SimpleNamespace(
            text_config=SimpleNamespace(hidden_size=HIDDEN, vocab_size=head.vocab_size),
            num_centroids=head.num_centroids,
            centroid_intermediate_top_k=head.top_k,
        )
    )
    theirs.centroids.weight = head.centroids.weight
    theirs.token_ordering = head.token_ordering
    weight = table.weight[mx.argsort(head.token_ordering)]
    mx.eval(weight)
    return lambda h: theirs.argmax(h, weight)


def interleaved_ms(steps: dict[str, Step], repeats: int, width: int = HIDDEN) -> dict[str, list[float]]:
    """Milliseconds of every repeat of every step, on the same new hidden state [1, 1, width] for all of them.

    Each begins with caches full of something else, as after the target's forward pass.
    """
    times = {name: [] for name in steps}
    elsewhere = mx.random.normal((2**26,))
    for n in range(repeats + 2):
        h = mx.random.normal((1, 1, width))
        mx.eval(h)
        for name, step in steps.items():
            mx.eval(elsewhere.max())
            started = time.perf_counter()
            mx.eval(step(h))
            if n >= 2:  # the first ones compile
                times[name].append((time.perf_counter() - started) * 1e3)
    return times


def working_memory(step: Step) -> int:
    """Bytes that a step needs at its peak, beside what is there before it."""
    h = mx.random.normal((1, 1, HIDDEN))
    mx.eval(h, step(h))
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(step(h))
    return mx.get_peak_memory() - before


def check_agreement(steps: dict[str, Step]) -> None:
    """Ours and mlx-vlm's must choose the same tokens, or they are not the same function."""
    for _ in range(20):
        h = mx.random.normal((1, 1, HIDDEN))
        tokens = {step(h).item() for step in steps.values()}
        if len(tokens) > 1:
            raise SystemExit(f"the clustered heads disagree: tokens {sorted(tokens)}")


def main() -> None:
    options = parser(__doc__.split("\n")[0])
    options.add_argument("--repeats", type=int, default=100)
    args = options.parse_args()
    mx.random.seed(0)

    head, table = random_head(VOCABULARY, CENTROIDS)
    four_bit = table.to_quantized(group_size=64, bits=4)
    mx.eval(four_bit.parameters())
    full, full_4, ours, ours_4, vlm = steps = {
        "full head": mx.compile(lambda h: mx.argmax(table.as_linear(h), axis=-1)),
        "full head, 4-bit": mx.compile(lambda h: mx.argmax(four_bit.as_linear(h), axis=-1)),
        "clustered head": mx.compile(lambda h: head.argmax(h, table)),
        "clustered head, 4-bit": mx.compile(lambda h: head.argmax(h, four_bit)),
        "mlx-vlm's clustered head": mlx_vlm_step(head, table),
    }
    check_agreement({name: steps[name] for name in (ours, vlm)})
    times = interleaved_ms(steps, args.repeats)

    wide_head, wide_table = random_head(2 * VOCABULARY, 2 * CENTROIDS)
    needed = working_memory(steps[ours])
    growth = working_memory(mx.compile(lambda h: wide_head.argmax(h, wide_table))) - needed
    figures = [
        *(Figure.of(name, values, "ms") for name, values in times.items()),
        ratio("full ÷ clustered", times[full], times[ours], 3.0),
        ratio("full ÷ clustered, 4-bit table", times[full_4], times[ours_4], 3.0),
        ratio("mlx-vlm's clustered ÷ ours", times[vlm], times[ours], 1.3),
        Figure.of("memory a step needs: ours", [needed / 1e6], "MB"),
        Figure.of("memory a step needs: mlx-vlm's", [working_memory(steps[vlm]) / 1e6], "MB"),
        Figure.of("the same, 4-bit: ours", [working_memory(steps[ours_4]) / 1e6], "MB"),
        # An array over the vocabulary, be it of one byte an entry, would show.
        Figure.of(
            "growth with twice the vocabulary", [growth / 1e6], "MB", goal=VOCABULARY / 1e6 / 2, goal_is_limit=True
        ),
    ]
    report(figures, args.json)


if __name__ == "__main__":
    main()
