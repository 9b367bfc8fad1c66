"""Checks an exported target: logits of `model.py`, of transformers and (where installed) of mlx-lm agree."""

import argparse
from pathlib import Path

import torch
from model import CONFIG, TargetModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

TOLERANCE = 1e-3


def compact_logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    model = TargetModel()
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name.removeprefix("model."): value.float() for name, value in weights.items()})
    return model(tokens)


def transformers_logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    return model(tokens).logits


def mlx_lm_logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    import mlx.core as mx
    from mlx_lm import load

    model, _ = load(str(folder))
    model.set_dtype(mx.float32)
    return torch.tensor(model(mx.array(tokens.numpy())).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="exported target")
    parser.add_argument("--length", type=int, default=3 * CONFIG["sliding_window"], help="tokens to compare over")
    parser.add_argument("--mlx", action="store_true", help="compare with mlx-lm too")
    args = parser.parse_args()

    torch.manual_seed(0)
    tokens = torch.randint(200, CONFIG["vocab_size"], (1, args.length))
    with torch.no_grad():
        logits = compact_logits(args.folder, tokens)
        others = {"transformers": transformers_logits(args.folder, tokens)}
    if args.mlx:
        others["mlx-lm"] = mlx_lm_logits(args.folder, tokens)
    for name, other in others.items():
        gap = (logits - other).abs().max().item()
        print(f"largest difference to {name}: {gap:.1e}")
        assert gap < TOLERANCE, f"{name} disagrees"


if __name__ == "__main__":
    main()
