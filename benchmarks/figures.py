"""What benchmarks report: named figures with their spread, as a table or as JSON."""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from mtp_mlx.bench.machine import this_machine
from mtp_mlx.bench.spread import Spread


@dataclass(frozen=True)
class Figure:
    """A measured value.

    Attributes:
        unit: "tok/s", "ms", "×" (a ratio) and so on.
        goal: the least it should be, or the most where `goal_is_limit`; None where nothing was promised.
    """

    name: str
    spread: Spread
    unit: str
    goal: float | None = None
    goal_is_limit: bool = False

    @classmethod
    def of(cls, name: str, values: Iterable[float], unit: str, **goal: Any) -> "Figure":
        return cls(name, Spread.of(values), unit, **goal)

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        value = self.spread.median
        met = value <= self.goal if self.goal_is_limit else value >= self.goal
        return f"{'≤' if self.goal_is_limit else '≥'} {self.goal:g} {'met' if met else 'MISSED'}"


def ratio(name: str, ahead: Sequence[float], behind: Sequence[float], goal: float | None = None) -> Figure:
    """`ahead` ÷ `behind`, measurement by measurement: they were taken in turns."""
    return Figure.of(name, (a / b for a, b in zip(ahead, behind, strict=True)), "×", goal=goal)


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with what every benchmark takes."""
    own = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    own.add_argument("--json", action="store_true", help="print everything as JSON instead of a table")
    return own


def report(figures: Sequence[Figure], as_json: bool, **details: Any) -> None:
    """Prints the figures, where and when they were measured, and, as JSON only, `details`."""
    machine = this_machine()
    if as_json:
        everything = {
            "date": date.today().isoformat(),
            "machine": asdict(machine),
            "figures": [{**asdict(figure), "verdict": figure.verdict} for figure in figures],
            **details,
        }
        print(json.dumps(everything, indent=1, ensure_ascii=False))
        return
    print(f"{date.today()}, {machine.processor}, {machine.cores} cores, MLX {machine.mlx} on {machine.device}", end="")
    print(f", BLAS: {machine.blas}. Median (quartiles).")
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        spread = figure.spread
        quartiles = f"({_number(spread.lower)} – {_number(spread.upper)})"
        value = f"{_number(spread.median):>8} {figure.unit:<6} {quartiles:<20}"
        print(f"{figure.name:<{width}}  {value} {figure.verdict}".rstrip())


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.3g}"
