"""Makes a head for SmolLM2 that has learned nothing yet, but starts from the target's own embedding space."""

import argparse
import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from head import Head
from safetensors.torch import load_file, save_file

from mtp_mlx.training.clusters import cluster_tokens
from mtp_mlx.training.initialize import principal_directions

STATE_SIZE = 2.0  # root mean square of the target's states, about


def config_of(target: dict, args: argparse.Namespace) -> dict:
    heads = target["num_attention_heads"]
    size = target.get("head_dim") or target["hidden_size"] // heads
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": target["hidden_size"],
        "use_ordered_embeddings": True,
        "num_centroids": args.num_centroids,
        "centroid_intermediate_top_k": args.top_clusters,
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "gemma4_text",
            "vocab_size": target["vocab_size"],
            "hidden_size": args.hidden_size,
            "intermediate_size": args.intermediate_size,
            "num_hidden_layers": args.num_layers,
            "num_kv_shared_layers": args.num_layers,
            "layer_types": ["full_attention"] * args.num_layers,
            "num_attention_heads": heads,
            "num_key_value_heads": target["num_key_value_heads"],
            "head_dim": size,
            "global_head_dim": size,
            "sliding_window": target["max_position_embeddings"],
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": target["rope_theta"]}},
            "hidden_size_per_layer_input": 0,
            "use_double_wide_mlp": False,
            "max_position_embeddings": target["max_position_embeddings"],
            "rms_norm_eps": 1e-6,
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--hidden-size", type=int, default=192)
    parser.add_argument("--intermediate-size", type=int, default=768)
    parser.add_argument("--num-layers", type=int, default=3)
    parser.add_argument("--num-centroids", type=int, default=256)
    parser.add_argument("--top-clusters", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(0)
    config = config_of(json.loads((args.target / "config.json").read_text("utf-8")), args)
    head = Head(config)
    table = load_file(args.target / "model.safetensors")["model.embed_tokens.weight"].float()
    basis = torch.from_numpy(np.array(principal_directions(mx.array(table.numpy()), args.hidden_size)))
    embedding = table @ basis
    size = table.pow(2).mean().sqrt()
    ordering = cluster_tokens(mx.array(embedding.numpy()), args.num_centroids)
    ordering = torch.from_numpy(np.array(ordering)).long()
    with torch.no_grad():
        head.model.embed_tokens.weight.copy_(embedding)
        head.pre_projection.weight.copy_(torch.cat([basis / size, basis / STATE_SIZE]).T * 0.5**0.5)
        head.post_projection.weight.copy_(basis)
        head.model.norm.weight.fill_(0.5 * STATE_SIZE)
        head.masked_embedding.token_ordering.copy_(ordering)
        means = embedding[ordering].view(args.num_centroids, -1, args.hidden_size).mean(1)
        head.masked_embedding.centroids.weight.copy_(means)
    print(f"{sum(p.numel() for p in head.parameters()):,} parameters")
    args.output.mkdir(parents=True, exist_ok=True)
    save_file(head.state_dict(), args.output / "model.safetensors", metadata={"format": "mlx"})
    (args.output / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
