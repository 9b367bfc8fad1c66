"""`mtp bench --estimate` beside the truth: the demo pair, or a random one whose target has 142 M parameters.

The truth is what the bench itself measures, decoding time ÷ rounds, of the same pair loaded as a whole in this
process. A random drafter is always wrong, which makes no difference to what a round takes. The truth is measured before
the estimate and after it, because machines drift; the quartiles show how much.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

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


def seconds_a_round(runner: Runner, depths: Sequence[int], repeats: int) -> dict[int, list[float]]:
    """By drafts a round, measured in turns."""
    prompt = np.random.default_rng(0).integers(200, 4000, size=CONTEXT - runner.num_tokens // 2).tolist()
    found: dict[int, list[float]] = {depth: [] for depth in depths}
    for _ in range(repeats):
        for depth in depths:
            run = runner.run(prompt, Way("mtp", depth) if depth else PLAIN)
            found[depth].append(run.decode_seconds / run.speculation.rounds)
    return found


def beside_the_truth(name: str, target: Path, drafter: Path, num_tokens: int, repeats: int) -> list[Figure]:
    """Estimated ÷ measured, for a plain step and for rounds."""
    model, _ = load_model(target)
    runner, depths = Runner(model, load_drafter(drafter, model), num_tokens), [0, *DEPTHS]
    truth = seconds_a_round(runner, depths, repeats)
    found: Estimate = estimate(name, read_config(target), read_config(drafter), None, CONTEXT)
    for depth, later in seconds_a_round(runner, depths, repeats).items():
        truth[depth] += later
    figures = []
    for depth in depths:
        predicted = (found.round_seconds[depth] if depth else found.plain_seconds).median
        what = f"{name}: {depth} drafts" if depth else f"{name}: plain step"
        figures.append(Figure.of(f"{what}, measured", (1e3 * seconds for seconds in truth[depth]), "ms"))
        ratios = [predicted / seconds for seconds in truth[depth]]
        figures.append(Figure.of(f"{what}, estimated ÷ measured", ratios, "×"))
    return [*figures, _furthest(name, found, truth)]


def _furthest(name: str, found: Estimate, truth: dict[int, list[float]]) -> Figure:
    """How far the worst of the predictions is from the truth: of speeds, and of speed-ups at any acceptance."""
    plain = median(truth[0])
    errors = [abs(found.plain_seconds.median / plain - 1)]
    for depth, spread in found.round_seconds.items():
        measured = median(truth[depth])
        errors += [abs(spread.median / measured - 1), abs(found.cost(depth) / (measured / plain) - 1)]
    return Figure.of(f"{name}: furthest from the truth", [max(errors)], "×", goal=GOAL, goal_is_limit=True)


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
