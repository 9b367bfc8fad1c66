"""What sampling costs and how much it accepts, on the demo pair: rejection, coupled (with a seed) and matching.

- **Acceptance by position** at a temperature: how often the draft at each place of a round was accepted given that
  those before it were, beside what theory says of the same places: Σ min(p, q) for rejection, Σ p·q for matching.
- **Speed** at that temperature beside greedy decoding with a drafter that is right equally often: time a round, sampled
  ÷ greedy, at the same number of drafts.
- **Draft temperature**: accepted drafts by the drafter's temperature, as a share of the target's.

    python -m benchmarks.sampling --prompts 12 --temp 1
"""

import argparse
import json
import time
from dataclasses import dataclass, field
from statistics import median

import mlx.core as mx
from mlx_lm.sample_utils import make_sampler as mlx_lm_sampler

import mtp_mlx
from benchmarks.demo_acceptance import HELD_OUT, held_out, prompt_ids
from mtp_mlx.decoding.acceptance import rule_for
from mtp_mlx.decoding.compiled import round_for
from mtp_mlx.decoding.depth import FixedDepth
from mtp_mlx.decoding.round import Round
from mtp_mlx.decoding.sampling import Sampler, Sampling, distribution
from mtp_mlx.decoding.stream import TokenStream
from mtp_mlx.sampler import make_sampler
from mtp_mlx.speculation import Speculation

FACTORS = (0.25, 0.5, 0.7, 0.85, 1.0, 1.15, 1.4)
WARM_UP = 3  # rounds of a run that are not timed


@dataclass
class Measured:
    """Rounds of one way of sampling."""

    speculation: Speculation = Speculation()
    round_seconds: list[float] = field(default_factory=list)


class Overlaps:
    """Σ min(p, q) and Σ p·q at every place of every round that was reached, of eager rejection rounds."""

    def __init__(self, model, drafter, sampling: Sampling):
        self.rule, self.controls = rule_for([sampling])
        self.round = Round(model, drafter, self)
        self.compiles = False
        self.sums: dict[int, list[float]] = {}

    def propose(self, draft, positions, controls):
        return self.rule.propose(draft, positions, controls)

    def settle(self, logits, drafts, positions, controls):
        tokens, accepted = self.rule.settle(logits, drafts, positions, controls)
        if drafts.count:
            p = distribution(logits[:, :-1], self.rule.filters, controls, controls.temp)
            at_candidates = p if drafts.ids is None else mx.take_along_axis(p, drafts.ids, axis=-1)
            least = mx.minimum(at_candidates, drafts.probs).sum(-1)[0].tolist()
            product = (at_candidates * drafts.probs).sum(-1)[0].tolist()
            for place in range(min(drafts.count, accepted.item() + 1)):
                count, minimum, dot = self.sums.get(place, (0, 0.0, 0.0))
                self.sums[place] = count + 1, minimum + least[place], dot + product[place]
        return tokens, accepted

    def means(self) -> tuple[list[float], list[float]]:
        places = [self.sums[place] for place in sorted(self.sums)]
        return [s[1] / s[0] for s in places], [s[2] / s[0] for s in places]


def run(model, drafter, ids: list[int], sampler: Sampler | None, drafts: int, tokens: int) -> Measured:
    rule, controls = rule_for([sampler])
    stream = TokenStream(
        round_for(model, drafter, rule),
        model.make_cache(),
        ids,
        max_tokens=tokens,
        depth=FixedDepth(drafts),
        controls=controls,
    )
    times, rounds = [], 0
    for emitted in stream:
        if emitted.speculation.rounds > rounds:
            rounds = emitted.speculation.rounds
            times.append(time.perf_counter())
    seconds = [b - a for a, b in zip(times[WARM_UP:], times[WARM_UP + 1 :], strict=False)]
    return Measured(stream.speculation, seconds)


def measure(model, drafter, prompts: list[list[int]], samplers: dict[str, Sampler | None], args) -> dict[str, Measured]:
    """All prompts in all ways, in turns."""
    found = {name: Measured() for name in samplers}
    for ids in [prompts[0], *prompts]:
        for name, sampler in samplers.items():
            one = run(model, drafter, ids, sampler, args.drafts, args.tokens)
            found[name].speculation += one.speculation
            found[name].round_seconds += one.round_seconds
    return found


def conditional(speculation: Speculation) -> list[float]:
    """Chance that the draft at each place is accepted when those before it were."""
    reached = (speculation.rounds, *speculation.accepted_by_position)
    return [a / r if r else 0.0 for a, r in zip(speculation.accepted_by_position, reached, strict=False)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=12, help="of each domain")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--temp", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    model, tokenizer = mtp_mlx.load("demo")
    drafter = mtp_mlx.load_drafter("auto", model)
    prompts = [prompt_ids(tokenizer, e) for entries in held_out(HELD_OUT, args.prompts).values() for e in entries]

    samplers = {
        "greedy": None,
        "rejection": make_sampler(args.temp),
        "rejection, top-k 64, top-p 0.95": make_sampler(args.temp, top_k=64, top_p=0.95),
        "coupled (seed)": make_sampler(args.temp, seed=1),
        "matching": mlx_lm_sampler(args.temp),
    }
    ways = measure(model, drafter, prompts, samplers, args)
    overlaps = Overlaps(model, drafter, make_sampler(args.temp))
    for ids in prompts:
        cache = model.make_cache()
        depth = FixedDepth(args.drafts)
        for _ in TokenStream(
            overlaps.round, cache, ids, max_tokens=args.tokens, depth=depth, controls=overlaps.controls
        ):
            pass
    least, product = overlaps.means()
    factors = {factor: make_sampler(args.temp, draft_temp=args.temp * factor) for factor in FACTORS}
    by_factor = measure(model, drafter, prompts, factors, args)

    usual = median(ways["greedy"].round_seconds)
    report = {
        "acceptance": {name: conditional(way.speculation) for name, way in ways.items()},
        "expected": {"sum of min(p, q)": least, "sum of p q": product},
        "round_time_over_greedy": {name: median(way.round_seconds) / usual for name, way in ways.items()},
        "accepted_by_draft_temperature": {
            factor: way.speculation.mean_acceptance_length - 1 for factor, way in by_factor.items()
        },
        "mean_acceptance_length": {name: way.speculation.mean_acceptance_length for name, way in ways.items()},
    }
    if args.json:
        print(json.dumps(report))
        return
    for title, rows in report.items():
        print(title)
        for name, value in rows.items():
            shown = " ".join(f"{v:.3f}" for v in (value if isinstance(value, list) else [value]))
            print(f"  {name:<34} {shown}")


if __name__ == "__main__":
    main()
