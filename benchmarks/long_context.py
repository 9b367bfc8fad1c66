"""Memory while decoding at a long context: bytes at the peak ÷ bytes of keys and values.

A small model with a large context. The peak is MLX's, less the weights; a round that copied its buffers would show as
2. The context is not computed: memory does not depend on what keys and values say.
"""

import mlx.core as mx
from mlx.utils import tree_flatten

from benchmarks.figures import Figure, parser, report
from mtp_mlx.decoding.compiled import CompiledRound
from mtp_mlx.decoding.depth import FixedDepth
from mtp_mlx.decoding.stream import TokenStream
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.target import Target
from tests import tiny

DRAFTS = 3
PROMPT = [5, 6, 7, 8]


def pair(context: int) -> tuple[Target, Gemma4Assistant]:
    """E2B in small, with heads wide enough that keys and values outweigh everything else."""
    config = tiny.target_config("e2b", max_position_embeddings=context, num_key_value_heads=2, global_head_dim=64)
    return tiny.build_target(config), tiny.build_drafter(tiny.drafter_config(config, clustered=True))


def cache_holding(model: Target, tokens: int, capacity: int) -> KVCache:
    """A cache that says it holds so many tokens, with room for `capacity`."""
    cache = model.make_cache()
    cache.reserve(capacity)
    model.model(mx.array([PROMPT]), cache)  # the first write gives the buffers their dtype
    cache.set_length(tokens)
    mx.eval(cache.arrays)
    return cache


def peak_while_decoding(model: Target, drafter: Gemma4Assistant | None, cache: KVCache, num_tokens: int) -> float:
    """Peak of everything but the weights ÷ keys and values, over a whole generation."""
    modules = [model] if drafter is None else [model, drafter]
    weights = sum(array.nbytes for module in modules for _, array in tree_flatten(module.parameters()))
    depth = FixedDepth(0 if drafter is None else DRAFTS)
    mx.clear_cache()
    mx.reset_peak_memory()
    for _ in TokenStream(CompiledRound(model, drafter), cache, PROMPT, max_tokens=num_tokens, depth=depth):
        pass
    return (mx.get_peak_memory() - weights) / cache.nbytes


def main() -> None:
    options = parser(__doc__.split("\n")[0])
    options.add_argument("--context", type=int, default=32_768, help="tokens in the cache when decoding begins")
    options.add_argument("--tokens", type=int, default=32, help="to emit in each run")
    args = options.parse_args()
    room = len(PROMPT) + args.tokens
    model, drafter = pair(2 * args.context + room)
    figures = []
    for name, own in (("plain", None), (f"{DRAFTS} drafts", drafter)):
        cache = cache_holding(model, args.context, args.context + room)
        peak = peak_while_decoding(model, own, cache, args.tokens)
        figures.append(Figure.of(f"peak ÷ keys and values, {name}", [peak], "×", goal=1.05, goal_is_limit=True))
        del cache
    full = cache_holding(model, args.context, args.context)
    growing = peak_while_decoding(model, drafter, full, args.tokens)
    figures.append(Figure.of(f"the same, {DRAFTS} drafts, buffers growing once", [growing], "×"))
    figures.append(Figure.of("keys and values", [full.nbytes / 1e6], "MB"))
    report(figures, args.json, context=args.context)


if __name__ == "__main__":
    main()
