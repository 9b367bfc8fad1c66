"""What `mtp train` shows while it runs: a bar on a terminal, plain lines elsewhere, all on stderr."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mtp_cli.console import note, stderr

if TYPE_CHECKING:
    from mtp_mlx.training.evaluate import Evaluation
    from mtp_mlx.training.run import Stepped

LINE_SECONDS = 10  # between the lines on what comes before the steps, where there is no terminal


class TrainView:
    """Shows steps and evaluations.

    Args:
        iters: steps of the whole run.
        steps_per_report: steps between plain lines.
    """

    def __init__(self, iters: int, steps_per_report: int):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.iters, self.steps_per_report = iters, steps_per_report
        self.console = stderr()
        columns = [
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
        ]
        self._bar = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self._task = self._bar.add_task("", visible=False, figures="")
        self._since: list[Stepped] = []
        self._line_time = time.monotonic()

    def __enter__(self) -> "TrainView":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def prepared(self, what: str, done: int, total: int) -> None:
        """Parts of what comes before the steps are done."""
        self._bar.update(self._task, description=what, completed=done, total=total, visible=True)
        late = time.monotonic() - self._line_time > LINE_SECONDS
        if not self.console.is_terminal and (late or done == total):
            self.note(f"{what}: {done} of {total}")
            self._line_time = time.monotonic()

    def stepped(self, event: "Stepped") -> None:
        """One more step is done."""
        self._since.append(event)
        figures = _figures(self._since)
        shown = {"description": "training", "completed": event.step, "total": self.iters, "visible": True}
        self._bar.update(self._task, figures=figures, **shown)
        if event.step % self.steps_per_report == 0 or event.step == self.iters:
            if not self.console.is_terminal:
                seconds = sum(each.seconds for each in self._since) / len(self._since) * (self.iters - event.step)
                self.note(f"step {event.step} of {self.iters}: {figures}, {duration(seconds)} left")
            self._since = []

    def evaluated(self, step: int, evaluation: "Evaluation") -> None:
        """The drafter was measured after so many steps."""
        self.note(f"step {step}: validation loss {evaluation.loss:.3f}, {evaluation_line(evaluation)}")

    def note(self, message: str) -> None:
        """A line above the bar."""
        note(message, self.console)


def _figures(events: "Sequence[Stepped]") -> str:
    loss = sum(event.loss for event in events) / len(events)
    accepted = [sum(shares) / len(events) for shares in zip(*(event.accepted for event in events), strict=True)]
    speed = sum(event.tokens for event in events) / sum(event.seconds for event in events)
    return f"loss {loss:.3f}, right {shares(accepted)}, {speed:,.0f} tokens/s"


def evaluation_line(evaluation: "Evaluation") -> str:
    """How many drafts would be accepted, and the clusters' recall."""
    recall = "" if evaluation.recall is None else f"; {evaluation.recall:.1%} of the choices in the clusters scored"
    return f"{evaluation.mean_accepted:.2f} drafts accepted a round ({shares(evaluation.accepted)} by position){recall}"


def head_line(config: dict[str, Any]) -> str:
    """What kind of head a drafter with this config.json has, and why not another."""
    vocabulary = config["text_config"]["vocab_size"]
    if not config.get("use_ordered_embeddings"):
        return f"head: full, all {vocabulary:,} tokens are scored (--num-centroids makes clusters of them)"
    clusters, top = config["num_centroids"], config["centroid_intermediate_top_k"]
    return f"head: {clusters} clusters of {vocabulary // clusters} tokens, the best {top} are scored"


def shares(values: Sequence[float]) -> str:
    return " · ".join(f"{value:.0%}" for value in values)


def duration(seconds: float) -> str:
    """Seconds in words."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"
