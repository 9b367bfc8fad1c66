"""How many drafts of the demo drafter its target accepts, after held-out text, by domain and by place in the round.

Three measures, all lossless and greedy on the drafter's side:

- **first round**: after real prefixes (a held-out prompt, also with the first words of what really follows it), the
  target's own next token, then how many of the drafts equal its greedy continuation. As `draft_tokens` drafts.
- **greedy runs**: replies of up to `--run-tokens` tokens at temperature 0, taken round by round.
- **sampled runs**: the same sampled from the target at `--temperature`; a draft is accepted when it equals the token
  that was sampled at its place, which is the rule by which `stream_generate` samples.

A weak target repeats itself, and repetition is easy to draft, so runs come with the share of 8-grams that occurred
earlier in the same reply.

    python -m benchmarks.demo_acceptance --prompts 30 --json acceptance.json
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import make_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

import mtp_mlx
from mtp_mlx.decoding.acceptance import count_agreeing
from mtp_mlx.generate import tokenize
from mtp_mlx.models.gemma4_assistant import Gemma4Assistant
from mtp_mlx.models.target import Target
from mtp_mlx.speculation import Speculation
from mtp_mlx.training import Rows, observe
from mtp_mlx.training.examples import gather
from mtp_mlx.training.unroll import unroll

HELD_OUT = Path(__file__).parents[1] / "weights" / "mtp_weights" / "demo" / "heldout.jsonl"
PREFIXES = (0, 6, 20, 40)  # tokens of the real continuation that follow the prompt
MOST_DRAFTS = 6
GRAM = 8


def held_out(path: Path, prompts: int) -> dict[str, list[dict]]:
    """Up to `prompts` entries a domain, raw and chat in turn."""
    groups = defaultdict(lambda: defaultdict(list))
    for line in path.read_text("utf-8").splitlines():
        entry = json.loads(line)
        groups[entry["domain"]][entry["kind"]].append(entry)
    return {domain: _in_turn(list(kinds.values()))[:prompts] for domain, kinds in groups.items()}


def _in_turn(lists: list[list]) -> list:
    longest = max(map(len, lists))
    return [items[i] for i in range(longest) for items in lists if i < len(items)]


def prompt_ids(tokenizer: TokenizerWrapper, entry: dict) -> list[int]:
    if entry["kind"] == "raw":
        return tokenize(tokenizer, entry["prompt"])
    messages = [{"role": "user", "content": entry["prompt"]}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)


def prefixes(tokenizer: TokenizerWrapper, entry: dict) -> Iterator[list[int]]:
    """The prompt, and the prompt with the first tokens of what follows, where that is long enough."""
    prompt = prompt_ids(tokenizer, entry)
    following = tokenizer.encode(entry["text"], add_special_tokens=False)
    for length in PREFIXES:
        if length < max(1, len(following)):
            yield prompt + following[:length]


def first_round(target: Target, drafter: Gemma4Assistant, prefix: list[int]) -> Speculation:
    """The round that follows a prefix."""
    first, drafts = mtp_mlx.draft_tokens(target, drafter, prefix, MOST_DRAFTS)
    logits = target(mx.array([[*prefix, first, *drafts]]))
    chosen = mx.argmax(logits[:, len(prefix) :], axis=-1)
    return Speculation().after(MOST_DRAFTS, count_agreeing(mx.array([drafts]), chosen).item())


def run(target: Target, drafter: Gemma4Assistant, prompt: list[int], stop: set[int], tokens: int, sampler) -> list[int]:
    """A reply without its stop id."""
    reply = []
    stream = mtp_mlx.generate_step(
        mx.array(prompt), target, draft_model=drafter, num_draft_tokens=3, max_tokens=tokens, sampler=sampler
    )
    for token, *_ in stream:
        if token in stop:
            break
        reply.append(token)
    return reply


def accepted_everywhere(target: Target, drafter: Gemma4Assistant, tokens: list[int]) -> list[int]:
    """Of six drafts after token 1, 2, …: how many equal the tokens that really follow. Text given, nothing sampled."""
    ids = mx.array([tokens])
    rows = Rows(np.array(ids), np.ones(ids.shape, np.int32))
    examples, _ = gather(observe(target, rows), np.array([0]), MOST_DRAFTS)
    states = unroll(drafter, target, examples.like(examples.arrays), MOST_DRAFTS)
    proposed = mx.stack([drafter.argmax(own)[0, :-1] for own in states])  # [6, anchors]
    anchors = proposed.shape[1]
    following = mx.stack([ids[0, 2 + j : 2 + j + anchors] for j in range(MOST_DRAFTS)])
    return mx.cumprod((proposed == following).astype(mx.int32), axis=0).sum(axis=0).tolist()


def rounds_over(accepted: list[int], start: int, drafts: int) -> Speculation:
    """The rounds of `drafts` that decode the text from token `start` on, each beginning where the last one ended."""
    speculation, anchor = Speculation(), start
    while anchor <= len(accepted):
        kept = min(drafts, accepted[anchor - 1])
        speculation = speculation.after(drafts, kept)
        anchor += kept + 1
    return speculation


def repeated_share(tokens: list[int]) -> tuple[int, int]:
    """How many 8-grams occurred earlier in the same text, of how many."""
    grams = [tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1)]
    return len(grams) - len(set(grams)), len(grams)


def measure_runs(
    target: Target, drafter: Gemma4Assistant, tokenizer: TokenizerWrapper, entries: list[dict], args, sampler
) -> dict:
    """Acceptance by number of drafts over whole replies, with the share of repeated 8-grams."""
    total = [Speculation()] * MOST_DRAFTS
    repeated = grams = length = 0
    for entry in entries:
        prompt = prompt_ids(tokenizer, entry)
        reply = run(target, drafter, prompt, tokenizer.eos_token_ids, args.run_tokens, sampler)
        accepted = accepted_everywhere(target, drafter, prompt + reply)
        total = [t + rounds_over(accepted, len(prompt), k) for k, t in enumerate(total, start=1)]
        again, of = repeated_share(reply)
        repeated, grams, length = repeated + again, grams + of, length + len(reply)
    return {
        "accepted_by_drafts": [s.accepted / s.rounds for s in total],
        "acceptance_by_position": list(total[-1].acceptance_by_position),
        "rounds": total[2].rounds,
        "mean_reply_tokens": length / len(entries),
        "repeated_8grams": repeated / max(1, grams),
    }


def measure_first_rounds(target: Target, drafter: Gemma4Assistant, tokenizer: TokenizerWrapper, entries: list) -> dict:
    """Acceptance in the first round, with the clustered head and with the full one."""
    rounds = [prefix for entry in entries for prefix in prefixes(tokenizer, entry)]
    result = summary(sum((first_round(target, drafter, prefix) for prefix in rounds), Speculation()))
    if drafter.config.use_ordered_embeddings:
        full = with_full_head(drafter)
        result["full_head"] = summary(sum((first_round(target, full, prefix) for prefix in rounds), Speculation()))
    return result | {"prompts": len(entries)}


def with_full_head(drafter: Gemma4Assistant) -> Gemma4Assistant:
    """The same drafter with every cluster among the candidates."""
    config = replace(drafter.config, centroid_intermediate_top_k=drafter.config.num_centroids)
    full = Gemma4Assistant(config, drafter.draft_position)
    full.update(drafter.parameters())
    return full


def summary(speculation: Speculation) -> dict:
    """Mean accepted drafts with 1 … 6 drafts a round, and acceptance by place."""
    by_place = speculation.accepted_by_position
    return {
        "accepted_by_drafts": [sum(by_place[:k]) / speculation.rounds for k in range(1, MOST_DRAFTS + 1)],
        "acceptance_by_position": list(speculation.acceptance_by_position),
        "rounds": speculation.rounds,
    }


def measure(target: Target, drafter: Gemma4Assistant, tokenizer: TokenizerWrapper, args: argparse.Namespace) -> dict:
    figures = {}
    for domain, entries in held_out(args.held_out, args.prompts).items():
        started = time.perf_counter()
        figures[domain] = {"first_round": measure_first_rounds(target, drafter, tokenizer, entries)}
        if args.run_tokens:
            for name, sampler in (("greedy", None), ("sampled", make_sampler(args.temperature))):
                figures[domain][name] = measure_runs(target, drafter, tokenizer, entries, args, sampler)
        show(domain, figures[domain])
        print(f"({time.perf_counter() - started:.0f} s)", flush=True)
    show("mean of domains", {name: mean_of([f[name] for f in figures.values()]) for name in figures[domain]})
    return figures


def mean_of(figures: list[dict]) -> dict:
    """Each domain counts the same."""
    result = {}
    for name, value in figures[0].items():
        values = [f[name] for f in figures]
        if isinstance(value, dict):
            result[name] = mean_of(values)
        elif isinstance(value, list):
            result[name] = [sum(v) / len(v) for v in zip(*values, strict=True)]
        else:
            result[name] = sum(values) / len(values)
    return result


def show(title: str, figures: dict) -> None:
    print(f"{title}: mean accepted drafts with k = 1 … {MOST_DRAFTS}")
    for name, values in figures.items():
        print(f"  {name:12}", *(f"{v:5.2f}" for v in values["accepted_by_drafts"]), _remark(values))
        if "full_head" in values:
            print("  ... full head", *(f"{v:5.2f}" for v in values["full_head"]["accepted_by_drafts"]))


def _remark(values: dict) -> str:
    if "repeated_8grams" not in values:
        return f"   {values['rounds']:.0f} prefixes"
    return f"   {100 * values['repeated_8grams']:.0f} % of 8-grams repeated, {values['mean_reply_tokens']:.0f} tokens"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft-model", default="auto")
    parser.add_argument("--held-out", type=Path, default=HELD_OUT)
    parser.add_argument("--prompts", type=int, default=30, help="most prompts a domain")
    parser.add_argument("--run-tokens", type=int, default=96, help="longest reply; 0 measures first rounds only")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for all figures")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    mx.random.seed(args.seed)
    target, tokenizer = mtp_mlx.load(args.model)
    drafter = mtp_mlx.load_drafter(args.draft_model, target)
    figures = measure(target, drafter, tokenizer, args)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
