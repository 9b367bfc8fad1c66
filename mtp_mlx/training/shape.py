"""The configuration of a new drafter: which sizes suit a target, in the released drafters' form."""

from dataclasses import dataclass
from typing import Any

from mtp_mlx.errors import MisuseError
from mtp_mlx.models.config import DecoderConfig

# As the released drafters: 256 wide for targets up to 2560, 1024 for larger ones; 8 times as wide within a layer; 128
# tokens a cluster, 4,096 tokens scored.
NARROW, WIDE, NARROW_UP_TO = 256, 1024, 2560
EXPANSION = 8
CLUSTER_SIZE = 128
SCORED_TOKENS = 4096
SMALL_VOCABULARY = 8192  # up to which scoring every token costs little beside the layers
FEWEST_CLUSTERS = 32  # with fewer, those that are scored are a large part of the vocabulary


@dataclass(frozen=True)
class Shape:
    """Sizes of a new drafter; None chooses by the target.

    Attributes:
        hidden_size, intermediate_size, num_attention_heads: of its layers.
        num_layers: how many; the last reads the target's full attention, the others the sliding one if it has any.
        num_centroids: clusters of the vocabulary; 0 for a full head.
        top_clusters: how many of them are scored.
    """

    hidden_size: int | None = None
    num_layers: int | None = None
    intermediate_size: int | None = None
    num_attention_heads: int | None = None
    num_centroids: int | None = None
    top_clusters: int | None = None


def most_clusters(vocab_size: int) -> int:
    """The most clusters a vocabulary can be halved into, of `CLUSTER_SIZE` tokens or more; 0 where there is no use."""
    if vocab_size <= SMALL_VOCABULARY:
        return 0
    power = vocab_size & -vocab_size  # the largest power of two that divides it
    while power > 1 and vocab_size // power < CLUSTER_SIZE:
        power //= 2
    return power if power >= FEWEST_CLUSTERS else 0


def check_clusters(vocab_size: int, num_centroids: int) -> None:
    """Refuses numbers of clusters that the vocabulary cannot be halved into."""
    if num_centroids and (num_centroids & (num_centroids - 1) or vocab_size % num_centroids):
        largest = vocab_size & -vocab_size
        fix = f"use a power of two up to {largest}, or 0 for a full head" if largest > 1 else "use 0 for a full head"
        raise MisuseError(
            f"--num-centroids must be a power of two that divides the vocabulary of {vocab_size}",
            given=num_centroids,
            fix=fix,
        )


def drafter_config(target: DecoderConfig, shape: Shape) -> dict[str, Any]:
    """config.json of a drafter for `target`.

    Raises:
        MisuseError: sizes that cannot be.
    """
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "dtype": "bfloat16",
        "backbone_hidden_size": target.hidden_size,
        **_head(target.vocab_size, shape),
        "tie_word_embeddings": True,
        "text_config": {**_layers(target, shape), **_attention(target, shape), **_UNUSED},
    }


_UNUSED = {
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "use_double_wide_mlp": False,
    "enable_moe_block": False,
    "attention_bias": False,
    "final_logit_softcapping": None,
    "tie_word_embeddings": True,
}


def _head(vocab_size: int, shape: Shape) -> dict[str, Any]:
    clusters = most_clusters(vocab_size) if shape.num_centroids is None else shape.num_centroids
    check_clusters(vocab_size, clusters)
    if not clusters:
        return {"use_ordered_embeddings": False}
    scored = min(SCORED_TOKENS, vocab_size // 8)
    top = shape.top_clusters or max(1, scored * clusters // vocab_size)
    return {"use_ordered_embeddings": True, "num_centroids": clusters, "centroid_intermediate_top_k": top}


def _layers(target: DecoderConfig, shape: Shape) -> dict[str, Any]:
    kinds = target.kv_types
    hidden = shape.hidden_size or min(target.hidden_size, NARROW if target.hidden_size <= NARROW_UP_TO else WIDE)
    count = shape.num_layers or max(len(kinds), min(4, len(target.layers) // 4))
    return {
        "model_type": "gemma4_text",
        "vocab_size": target.vocab_size,
        "hidden_size": hidden,
        "intermediate_size": shape.intermediate_size or min(EXPANSION * hidden, target.layers[0].intermediate_size),
        "num_hidden_layers": count,
        "num_kv_shared_layers": count,
        "layer_types": [kinds[0]] * (count - 1) + [kinds[-1]],
        "rms_norm_eps": target.rms_norm_eps,
        "max_position_embeddings": target.max_position_embeddings,
        "sliding_window": target.sliding_window or target.max_position_embeddings,
        "rope_parameters": {kind: target.position_embeddings(kind) for kind in kinds},
    }


def _attention(target: DecoderConfig, shape: Shape) -> dict[str, Any]:
    """Shapes of the keys and values that the drafter reads."""
    kinds = target.kv_types
    first, last = (target.layers[target.last_owner(kind)] for kind in (kinds[0], kinds[-1]))
    heads = shape.num_attention_heads or target.num_attention_heads
    kv_heads = {first.num_key_value_heads, last.num_key_value_heads}
    if any(heads % count for count in kv_heads):
        raise MisuseError(
            "--num-attention-heads must be a multiple of the target's key-value heads",
            given=heads,
            fix=f"these are {' and '.join(map(str, sorted(kv_heads)))}",
        )
    return {
        "num_attention_heads": heads,
        "head_dim": first.head_dim,
        "global_head_dim": last.head_dim,
        "num_key_value_heads": first.num_key_value_heads,
        "num_global_key_value_heads": last.num_key_value_heads,
        # Readers look at the number above only where keys are values too, which for a drafter means nothing else.
        "attention_k_eq_v": len(kv_heads) > 1,
    }
