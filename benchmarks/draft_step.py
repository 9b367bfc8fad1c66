"""One whole greedy draft step of E2B's drafter: full head, our clustered head, mlx-vlm's clustered head.

E2B's real drafter configuration with random weights, over the keys and values of a short context. The target behind it
is a stand-in: its embedding, two layers that own the keys and values, nothing else.
"""

import tempfile
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_vlm.speculative.drafters.gemma4_assistant import Model as VlmDrafter
from mlx_vlm.speculative.drafters.gemma4_assistant import ModelConfig as VlmConfig

from benchmarks.clustered_head import Step, interleaved_ms
from benchmarks.figures import Figure, parser, ratio, report
from mtp_mlx.decoding.compiled import CompiledRound
from mtp_mlx.kv_cache import KVCache
from mtp_mlx.load import load_drafter
from mtp_mlx.models.config import FULL, SLIDING
from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant, to_vocabulary_order
from mtp_mlx.models.gemma4_config import AssistantConfig, TextConfig
from tests import tiny

BACKBONE = 1536
# Of google/gemma-4-E2B-it-assistant's config.json, what the layers and the head depend on.
DRAFTER = {
    "model_type": "gemma4_assistant",
    "backbone_hidden_size": BACKBONE,
    "use_ordered_embeddings": True,
    "num_centroids": 2048,
    "centroid_intermediate_top_k": 32,
    "text_config": {
        "model_type": "gemma4_text",
        "vocab_size": 262_144,
        "hidden_size": 256,
        "intermediate_size": 2048,
        "num_hidden_layers": 4,
        "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 512,
        "hidden_size_per_layer_input": 0,
        "use_double_wide_mlp": False,
    },
}
STAND_IN = {
    **DRAFTER["text_config"],
    "hidden_size": BACKBONE,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "layer_types": [SLIDING, FULL],
}


def our_step(drafter: Gemma4Assistant, target: Gemma4, cache: KVCache) -> Step:
    """Hidden state [1, 1, backbone] -> draft, by the compiled function that decoding uses."""
    round, token = CompiledRound(target, drafter), mx.array([[7]])
    return lambda hidden: round.draft(cache, token, hidden, 1).drafts.tokens


def mlx_vlm_step(drafter: Gemma4Assistant, target: Gemma4, cache: KVCache, tokens: int) -> Step:
    """The same with mlx-vlm's drafter over the same weights, and over as many keys and values as it would see."""
    theirs = VlmDrafter(VlmConfig.from_dict(DRAFTER))
    weights = to_vocabulary_order(tree_flatten(drafter.parameters(), destination={}))
    # Row-contiguous, as it loads them itself; ours may lie in memory otherwise.
    theirs.load_weights([(name, mx.contiguous(array)) for name, array in weights.items()])
    theirs.bind(target.model)
    theirs._input_embed_scale = BACKBONE**0.5  # which it cannot find in our model
    rows = {FULL: tokens, SLIDING: min(tokens, target.config.sliding_window)}
    shared = {kind: tuple(array[:, :, :n] for array in cache.shared(kind).state) for kind, n in rows.items()}
    mx.eval(shared, theirs.parameters())
    theirs.set_shared_kv(shared, tokens)

    def greedy(logits: mx.array) -> mx.array:
        return mx.argmax(logits, axis=-1)

    return lambda hidden: theirs.draft_block(7, hidden, None, 2, greedy, greedy=True)


def filled_cache(target: Gemma4, tokens: int) -> KVCache:
    cache = target.make_cache()
    target.model(mx.arange(tokens)[None], cache)
    mx.eval(cache.arrays)
    return cache


def main() -> None:
    options = parser(__doc__.split("\n")[0])
    options.add_argument("--context", type=int, default=600, help="tokens in the cache")
    options.add_argument("--repeats", type=int, default=100)
    args = options.parse_args()
    mx.random.seed(0)
    target = Gemma4(TextConfig.from_dict(STAND_IN))
    with tempfile.TemporaryDirectory() as parent:
        clustered = load_drafter(tiny.write_drafter(Path(parent) / "drafter", DRAFTER), target)
    full = Gemma4Assistant(AssistantConfig.from_dict({**DRAFTER, "use_ordered_embeddings": False}))
    full.update({name: clustered[name] for name in ("model", "pre_projection", "post_projection")})
    mx.eval(target.parameters())
    cache = filled_cache(target, args.context)
    steps = {
        "full head": our_step(full, target, cache),
        "clustered head": our_step(clustered, target, cache),
        "mlx-vlm, clustered head": mlx_vlm_step(clustered, target, cache, args.context),
    }
    times = interleaved_ms(steps, args.repeats, width=BACKBONE)
    figures = [
        *(Figure.of(f"draft step, {name}", values, "ms") for name, values in times.items()),
        ratio("full ÷ clustered", times["full head"], times["clustered head"], 3.0),
        ratio("mlx-vlm's ÷ ours", times["mlx-vlm, clustered head"], times["clustered head"], 1.3),
    ]
    report(figures, args.json, context=args.context)


if __name__ == "__main__":
    main()
