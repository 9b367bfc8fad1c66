"""The protocol: plain decoding and MTP, interleaved, on the same prompts, and their outputs compared.

- A run in which something was compiled for the first time is not counted, but done again.
- Each prompt runs in all ways right after each other, in random order, and prompts come in random order too: drifts of
  the machine hit all ways alike. The order comes from a fixed seed.
- Every run emits the same number of tokens and stop ids are ignored, unless runs are to end as replies do.
- Decoding is timed from the first token to the last, without instruments: phases are timed in runs of their own.
- Greedy outputs must be equal, and those drawn with a seed; where they are not, the first difference and its logit gap
  are reported. Draws without a seed have the same distribution, but differ.
- The lenient rule, where it is asked for, is a way of its own, and how far it departs from the target's choices is
  measured.
- Several depths, and several drafters, are as many ways, beside one and the same plain decoding.
"""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from statistics import mean

from mlx.utils import tree_flatten

from mtp_mlx.bench.instruments import Energy, Phases, energy_meter, mean_phases
from mtp_mlx.bench.machine import this_machine
from mtp_mlx.bench.outputs import departure, first_divergence
from mtp_mlx.bench.report import Memory, Report
from mtp_mlx.bench.roofline import Roofline, drafter_bytes, memory_bandwidth, target_bytes
from mtp_mlx.bench.runner import GREEDY, PLAIN, Runner, Way
from mtp_mlx.bench.runs import PromptResult, Run
from mtp_mlx.decoding.sampling import Sampling
from mtp_mlx.errors import MisuseError, UserError
from mtp_mlx.exactness import ExactWay, exact_way
from mtp_mlx.kv_cache import MAX_DRAFT_TOKENS
from mtp_mlx.models.drafter import Drafter
from mtp_mlx.models.target import Target

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Workload:
    """A prompt to measure on: its category, its text for the report, and its ids."""

    category: str
    text: str
    ids: list[int]


def measure(
    model: Target,
    drafter: Drafter | None,
    workloads: Sequence[Workload],
    *,
    num_draft_tokens: int | str = "auto",
    **options,
) -> Report:
    """Measures plain decoding and, with a drafter, MTP at one depth; see `measure_drafters`."""
    return measure_depths(model, drafter, workloads, [num_draft_tokens], **options)[0]


def measure_depths(
    model: Target, drafter: Drafter | None, workloads: Sequence[Workload], depths: Sequence[int | str], **options
) -> list[Report]:
    """Measures plain decoding and, with a drafter, MTP at each of the depths; see `measure_drafters`."""
    return measure_drafters(model, {} if drafter is None else {"": drafter}, workloads, depths, **options)


def measure_drafters(
    model: Target,
    drafters: Mapping[str, Drafter],
    workloads: Sequence[Workload],
    depths: Sequence[int | str],
    *,
    num_tokens: int = 128,
    stop_ids: Collection[int] = (),
    repeats: int = 1,
    sampler: Sampling = GREEDY,
    lenient: bool = False,
    exact: bool = False,
    delay: float = 0.0,
    progress: Progress | None = None,
) -> list[Report]:
    """Measures plain decoding and speculation with each of the drafters at each of the depths.

    Args:
        drafters: by the name that the reports give them; none for plain decoding only.
        depths: drafts a round, numbers or "auto".
        num_tokens: to emit in each run, at least 2.
        stop_ids: ids that end a run before; none where all runs shall be equally long.
        repeats: runs of each prompt and way.
        sampler: how tokens are drawn.
        lenient: also measure the lenient rule, which is not lossless.
        exact: decode in widths that agree to the bit, in every way; the report says how and at what price.
        delay: seconds to wait before each run, for machines that get hot.
        progress: called with (runs done, runs in all), first when warming up is done; runs that time the phases count.

    Returns:
        A report for each drafter and depth; the plain runs in them are the same. Without a drafter, one.

    Raises:
        MisuseError: too few tokens or repeats, or a prompt that leaves no room for them in the context.
        UserError: drafting was asked for, and nothing was ever drafted ("auto" may try it and find that it does not
            pay: that is a result); or a run ended at its first token.
    """
    _check(model, workloads, num_tokens, repeats)
    longest = max(len(work.ids) for work in workloads) + num_tokens
    way = exact_way(model, longest, _deepest(depths)) if exact else None
    runner = Runner(model, drafters, num_tokens, stop_ids, sampler, delay, way and way.widths, longest)
    bench = _Bench(runner, depths, lenient, way)
    bench.run_all(workloads, repeats, progress or (lambda done, total: None))
    return [bench.report(workloads, repeats, way) for way in bench.reported]


def _check(model: Target, workloads: Sequence[Workload], num_tokens: int, repeats: int) -> None:
    if num_tokens < 2:
        raise MisuseError("decoding is timed from the first token to the last: 2 at least", given=num_tokens)
    if repeats < 1:
        raise MisuseError("repeats must be positive", given=repeats)
    if not workloads:
        raise MisuseError("there are no prompts to measure on")
    context = model.config.max_position_embeddings
    longest = max(workloads, key=lambda work: len(work.ids))
    if len(longest.ids) + num_tokens > context:
        raise MisuseError(
            f"prompt and output must fit into the model's context of {context} tokens",
            given=f"{len(longest.ids)} + {num_tokens} tokens, {longest.text[:40]!r}",
            fix="shorten the prompt or measure fewer tokens",
        )


def _deepest(depths: Sequence[int | str]) -> int | str:
    """The depth whose widths serve all; an impossible one is refused where it is used."""
    return "auto" if "auto" in depths else min(max(depths), MAX_DRAFT_TOKENS)


class _Bench:
    """All prompts in each of the `ways`."""

    def __init__(
        self, runner: Runner, depths: Sequence[int | str], lenient: bool = False, exact: ExactWay | None = None
    ):
        self.exact = exact
        self.runner, self.model, self.drafters, self.sampler = runner, runner.model, runner.drafters, runner.sampler
        rules = ("mtp", "lenient") if lenient else ("mtp",)
        choices = product(self.drafters, depths, rules)
        self.ways = [PLAIN, *(Way(rule, depth, name) for name, depth, rule in choices)]
        self.reported = [way for way in self.ways if way.rule == "mtp"] or [PLAIN]
        self.runs: dict[tuple[int, Way], list[Run]] = {}  # by the number of the prompt
        self.phases: dict[Way, list[Phases]] = {}

    def run_all(self, workloads: Sequence[Workload], repeats: int, progress: Progress) -> None:
        for way in self.ways:
            self.runner.run(workloads[0].ids, way)  # once for nothing, for caches and clocks
        order = list(self._order(len(workloads), repeats))
        phases = list(product(self.reported, _samples(workloads)))
        total = len(order) + len(phases)
        progress(0, total)
        for done, (prompt, way) in enumerate(order, start=1):
            self.runs.setdefault((prompt, way), []).append(self.runner.run(workloads[prompt].ids, way))
            progress(done, total)
        self.check_drafted()
        for done, (way, ids) in enumerate(phases, start=len(order) + 1):
            self.phases.setdefault(way, []).append(self.runner.phases(ids, way))
            progress(done, total)

    def _order(self, prompts: int, repeats: int) -> Iterator[tuple[int, Way]]:
        chance, ways = random.Random(0), self.ways
        for _ in range(repeats):
            for n, prompt in enumerate(chance.sample(range(prompts), prompts)):
                # Every second prompt has the order of the last one backwards: no way comes first more often by chance.
                ways = ways[::-1] if n % 2 else chance.sample(self.ways, len(self.ways))
                yield from ((prompt, way) for way in ways)

    def check_drafted(self) -> None:
        if any(way.drafts != 0 and not self.runner.drafted[way] for way in self.ways):
            given = f"{self.runner.num_tokens} tokens a prompt"
            raise UserError("nothing was drafted", given=given, fix="measure more tokens")

    def report(self, workloads: Sequence[Workload], repeats: int, way: Way) -> Report:
        results = [self.result(n, work, way) for n, work in enumerate(workloads)]
        return Report(
            model=self.model.name,
            drafter=way.drafter,
            date=datetime.now().astimezone().isoformat(timespec="seconds"),
            num_tokens=self.runner.num_tokens,
            repeats=repeats,
            num_draft_tokens=way.drafts,
            sampler=self.sampler,
            machine=this_machine(),
            memory=self.memory(results, way),
            results=results,
            roofline=self.roofline(results, way),
            phases=mean_phases(self.phases[way]),
            energy=self.energy(_samples(workloads), way),
            exact=self.exact,
            stops=bool(self.runner.stop_ids),
        )

    def result(self, prompt: int, work: Workload, way: Way) -> PromptResult:
        """All runs of a prompt with one drafter at one depth, with how its output compares."""
        ways = (PLAIN, way._replace(rule="mtp"), way._replace(rule="lenient"))
        plain, mtp, lenient = (self.runs.get((prompt, each), []) for each in ways)
        compared = self.sampler.is_reproducible
        return PromptResult(
            work.category,
            work.text,
            len(work.ids),
            plain,
            mtp,
            lenient,
            first_divergence(self.model, work.ids, plain[0], mtp) if compared else None,
            departure(self.model, self.sampler, work.ids, lenient[0]) if lenient else None,
        )

    def energy(self, prompts: Sequence[list[int]], way: Way) -> Energy | None:
        meter = energy_meter()
        if meter is None:
            return None

        def joules(way: Way) -> float:
            runs: list[Run] = []
            spent = meter.joules(lambda: runs.extend(self.runner.run(ids, way) for ids in prompts))
            return spent / sum(len(run.tokens) for run in runs)

        return Energy(joules(PLAIN), None if way == PLAIN else joules(way))

    def roofline(self, results: Sequence[PromptResult], way: Way) -> Roofline:
        bandwidth, drafter = memory_bandwidth(), self.drafters.get(way.drafter)
        plain = [run for result in results for run in result.plain]
        mtp = [run for result in results for run in result.mtp]
        share = self._share(mtp, bandwidth, drafter) if mtp else None
        return Roofline(bandwidth, self._share(plain, bandwidth, None), share)

    def _share(self, runs: Sequence[Run], bandwidth: float, drafter: Drafter | None) -> float:
        """Of the bandwidth, by the weights that each round of `runs` had to read."""
        shares = []
        for run in runs:
            rounds = run.speculation.rounds
            drafts = run.speculation.drafted / rounds
            read = target_bytes(self.model, 1 + drafts) + (drafts * drafter_bytes(drafter) if drafts else 0)
            shares.append(read * rounds / run.decode_seconds / bandwidth)
        return mean(shares)

    def memory(self, results: Sequence[PromptResult], way: Way) -> Memory:
        drafter = self.drafters.get(way.drafter)
        mtp = [run.peak_memory for result in results for run in result.mtp]
        return Memory(
            target=_nbytes(self.model),
            drafter=0 if drafter is None else _nbytes(drafter),
            key_values=self.runner.key_values[way],
            plain_peak=max(run.peak_memory for result in results for run in result.plain),
            mtp_peak=max(mtp) if mtp else None,
        )


def _samples(workloads: Sequence[Workload]) -> list[list[int]]:
    """The first prompt of each category, for what is measured in runs of its own."""
    return list({work.category: work.ids for work in reversed(workloads)}.values())


def _nbytes(module) -> int:
    return sum(array.nbytes for _, array in tree_flatten(module.parameters()))
