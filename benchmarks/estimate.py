"""`mtp bench --estimate` beside the truth: the demo pair, or a random one whose target has 142 M parameters.

The truth is what the bench itself measures, decoding time ÷ rounds, of the same pair loaded as a whole in this
process. A random drafter is always wrong, which makes no difference to what a round takes. The truth is measured before
the estimate and after it, because machines drift; the quartiles show how much.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, parser, report
from benchmarks.scripted import target_config
from mtp_mlx.bench.estimate import Estimate, estimate
from mtp_mlx.bench.estimate.predict import DEPTHS
from mtp_mlx.bench.runner import PLAIN, Runner, Way
from mtp_mlx.load import load_drafter, load_model
from mtp_weights.pairs import DEMO_DRAFTER, DEMO_TARGET, bundled_folder
from mtp_weights.read import read_config
from tests import tiny

CONTEXT = 180  # tokens before the middle of what the truth decodes
GOAL = 0.2  # how far from the truth a prediction may be
DRAFTER = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4}


@dataclass(frozen=True)
class Truth:
    """Rounds of one run: their mean seconds, and how many drafts they had in the mean: fewer near the end of a run."""

    seconds: float
    drafts: float

    def predicted(self, found: Estimate) -> float:
        """Seconds by the estimate, which is taken to lie on lines between its depths."""
        known = {0: found.plain_seconds, **found.round_seconds}
        return float(np.interp(self.drafts, list(known), [spread.median for spread in known.values()]))


def measured(runner: Runner, depths: Sequence[int], repeats: int) -> dict[int, list[Truth]]:
    """By drafts a round, measured in turns."""
    prompt = np.random.default_rng(0).integers(200, 4000, size=CONTEXT - runner.num_tokens // 2).tolist()
    found: dict[int, list[Truth]] = {depth: [] for depth in depths}
    for _ in range(repeats):
        for depth in depths:
            run = runner.run(prompt, Way("mtp", depth) if depth else PLAIN)
            rounds = run.speculation.rounds
            found[depth].append(Truth(run.decode_seconds / rounds, run.speculation.drafted / rounds))
    return found


def beside_the_truth(name: str, target: Path, drafter: Path, num_tokens: int, repeats: int) -> list[Figure]:
    """Estimated ÷ measured, for a plain step and for rounds."""
    model, _ = load_model(target)
    runner, depths = Runner(model, load_drafter(drafter, model), num_tokens), [0, *DEPTHS]
    truth = measured(runner, depths, repeats)
    found = estimate(name, read_config(target), read_config(drafter), None, CONTEXT)
    for depth, later in measured(runner, depths, repeats).items():
        truth[depth] += later
    figures, errors = [], []
    for depth, runs in truth.items():
        what = f"{name}: rounds of up to {depth} drafts" if depth else f"{name}: plain steps"
        ratio = Figure.of(f"{what}, estimated ÷ measured", (run.predicted(found) / run.seconds for run in runs), "×")
        figures += [Figure.of(f"{what}, measured", (1e3 * run.seconds for run in runs), "ms"), ratio]
        errors.append(abs(ratio.spread.median - 1))
    worst = Figure.of(f"{name}: furthest from the truth", [max(errors)], "×", goal=GOAL, goal_is_limit=True)
    return [*figures, worst]


def random_pair(parent: Path) -> tuple[Path, Path]:
    """Folders of a target of 142 M parameters and of a drafter for it."""
    config = target_config(12, 768, 24_576)
    drafter = tiny.drafter_config(config, clustered=False, **DRAFTER)
    return tiny.write_target(parent / "target", config), tiny.write_drafter(parent / "drafter", drafter)


def main() -> None:
    options = parser(__doc__.split("\n")[0])
    options.add_argument("--pair", choices=("demo", "random"), default="demo")
    options.add_argument("--tokens", type=int, default=32, help="to emit in each run")
    options.add_argument("--repeats", type=int, default=3)
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        demo = bundled_folder(DEMO_TARGET), bundled_folder(DEMO_DRAFTER)
        folders = demo if args.pair == "demo" else random_pair(Path(parent))
        report(beside_the_truth(args.pair, *folders, args.tokens, args.repeats), args.json)


if __name__ == "__main__":
    main()
