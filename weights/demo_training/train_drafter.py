"""Trains the demo drafter on the frozen demo target with `mtp_mlx.training`.

The text is rows that `sample_text.py` sampled from a target (an earlier state of it will do: labels come from the
target given here), and rows of the training documents themselves.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path

import mtp_mlx  # loads OpenBLAS, before MLX is imported

# isort: split
import mlx.core as mx
import numpy as np
from packing import cached_documents
from prompts import PromptSource

from mtp_mlx.models.gemma4 import Gemma4
from mtp_mlx.models.gemma4_config import AssistantConfig
from mtp_mlx.training import Examples, Objective, Trainer, new_drafter, observe, save_drafter
from mtp_mlx.training.trainer import linear_decay

HELD_BACK_ROWS = 16
REPORT_SECONDS = 45


def drafter_config(target: dict, args: argparse.Namespace) -> dict:
    """config.json of a drafter for the target whose config.json is given."""
    shared = ("vocab_size", "head_dim", "global_head_dim", "num_key_value_heads", "num_global_key_value_heads")
    shared += ("hidden_activation", "rms_norm_eps", "sliding_window", "rope_parameters", "max_position_embeddings")
    shared += ("pad_token_id", "bos_token_id", "attention_bias", "attention_k_eq_v")
    text = {name: target[name] for name in shared} | {
        "model_type": "gemma4_text",
        "hidden_size": args.hidden,
        "intermediate_size": args.intermediate,
        "num_hidden_layers": len(args.layers),
        "num_kv_shared_layers": len(args.layers),
        "layer_types": [{"s": "sliding_attention", "f": "full_attention"}[kind] for kind in args.layers],
        "num_attention_heads": args.heads,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "use_double_wide_mlp": False,
        "enable_moe_block": False,
        "final_logit_softcapping": None,
        "tie_word_embeddings": True,
    }
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "dtype": "bfloat16",
        "backbone_hidden_size": target["hidden_size"],
        "use_ordered_embeddings": True,
        "num_centroids": args.clusters,
        "centroid_intermediate_top_k": args.top_clusters,
        "tie_word_embeddings": True,
        "text_config": text,
    }


def start(target: Gemma4, config: dict, args: argparse.Namespace):
    """The drafter to train, and its config.json."""
    if args.start_from is None:
        made = drafter_config(config, args)
        return new_drafter(target, AssistantConfig.from_dict(made)), made
    drafter = mtp_mlx.load_drafter(args.start_from, target)
    return drafter, json.loads((args.start_from / "config.json").read_text("utf-8"))


def text_rows(args: argparse.Namespace) -> np.ndarray:
    """int32 rows [N, length] of sampled text and of documents, in random order."""
    rng = np.random.default_rng(args.seed)
    parts = [np.load(path)[:, : args.length].astype(np.int32) for path in args.text]
    if args.document_rows:
        documents = cached_documents(args.documents, args.target, args.tokens)
        parts.append(PromptSource(documents, rng).batch(args.document_rows, args.length))
    return rng.permutation(np.concatenate(parts))


def observed(target: Gemma4, args: argparse.Namespace) -> Examples:
    """What the target makes of the text, kept in `--observed` between runs."""
    if args.observed and args.observed.exists():
        stored = mx.load(str(args.observed))
        return Examples.of([stored[str(i)] for i in range(len(stored))])
    examples = observe(target, mx.array(text_rows(args)))
    if args.observed:
        mx.save_safetensors(str(args.observed), {str(i): array for i, array in enumerate(examples.arrays)})
    return examples


def train(trainer: Trainer, examples: Examples, held_back: Examples, args: argparse.Namespace) -> None:
    """Trains for `--minutes` of CPU time, which stands still while the process is paused."""
    started = logged = time.process_time()
    total = args.minutes * 60
    while True:
        for batch in examples.batches(args.batch):
            now = time.process_time()
            if now - started > total:
                return
            loss, _ = trainer.step(batch, (now - started) / total)
            if now - logged > REPORT_SECONDS:
                report(trainer, loss, held_back, now - started)
                logged = now


def report(trainer: Trainer, loss: float, held_back: Examples, seconds: float) -> None:
    held_loss, agreement = trainer.evaluate(held_back)
    line = {"step": trainer.steps, "seconds": round(seconds), "loss": round(loss, 4), "held_back": round(held_loss, 4)}
    line["agreement"] = [round(a, 3) for a in agreement]
    print(json.dumps(line), flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True, help="exported target")
    parser.add_argument("--documents", type=Path, required=True, help="documents.jsonl from corpus.py")
    parser.add_argument("--tokens", type=Path, required=True, help="tokens.npz that train_target.py made of them")
    parser.add_argument("--text", type=Path, nargs="*", default=[], help="files from sample_text.py")
    parser.add_argument("--document-rows", type=int, default=0, help="rows of training documents to add")
    parser.add_argument("--output", type=Path, required=True, help="folder for the drafter")
    parser.add_argument("--start-from", type=Path, help="drafter to go on with; its shape is kept")
    parser.add_argument("--observed", type=Path, help="keeps the target's view of the text (.safetensors)")
    parser.add_argument("--minutes", type=float, required=True, help="CPU time of training, without the target's pass")
    parser.add_argument("--length", type=int, default=192, help="tokens a row")
    parser.add_argument("--batch", type=int, default=4, help="rows a step")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--intermediate", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", default="sf", help="s for a sliding layer, f for a full one")
    parser.add_argument("--clusters", type=int, default=128)
    parser.add_argument("--top-clusters", type=int, default=8)
    parser.add_argument("--draft-steps", type=int, default=4)
    parser.add_argument("--muon-rate", type=float, default=0.04)
    parser.add_argument("--adam-rate", type=float, default=0.012)
    parser.add_argument("--decay", type=float, default=0.4, help="last part of the time in which the rates fall to 0")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    mx.random.seed(args.seed)
    target, config = mtp_mlx.load_model(args.target)
    drafter, made = start(target, config, args)
    started = time.time()
    examples = observed(target, args)
    print(f"{len(examples)} rows ready after {time.time() - started:.0f} s", flush=True)
    held_back, examples = (
        examples.rows(mx.arange(HELD_BACK_ROWS)),
        examples.rows(mx.arange(HELD_BACK_ROWS, len(examples))),
    )
    objective = Objective(num_steps=args.draft_steps)
    schedule = partial(linear_decay, fraction=args.decay)
    trainer = Trainer(drafter, target, objective, muon_rate=args.muon_rate, adam_rate=args.adam_rate, schedule=schedule)
    train(trainer, examples, held_back, args)
    save_drafter(drafter, made, args.output)


if __name__ == "__main__":
    main()
