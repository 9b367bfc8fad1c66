"""`mtp train`: trains an MTP drafter on a frozen target, or re-aligns one that there is."""

import json
from typing import TYPE_CHECKING, Any

import typer

from mtp_cli import options
from mtp_cli import train_options as own
from mtp_cli.console import note, status
from mtp_cli.download import bring
from mtp_cli.interrupt import Interrupt, StoppedError
from mtp_cli.train_estimate import print_estimate
from mtp_cli.train_view import TrainView, head_line, shares
from mtp_weights.errors import MisuseError

if TYPE_CHECKING:
    from mtp_mlx.training.begin import Begun, Plan
    from mtp_mlx.training.run import Run

GO_ON = "the same command goes on from there"


def train(
    model: own.Model,
    data: own.Data,
    output: own.Output,
    init: own.Init = None,
    adapter_path: options.AdapterPath = None,
    self_distill: own.SelfDistill = "follow",
    iters: own.Iters = 1000,
    batch_size: own.BatchSize = 4,
    max_seq_length: own.MaxSeqLength = 512,
    learning_rate: own.LearningRate = 0.03,
    num_draft_tokens: own.NumDraftTokens = 4,
    top_k: own.TopK = 8,
    distribution_weight: own.DistributionWeight = 0.3,
    temp: own.Temperature = 0.8,
    seed: own.Seed = 0,
    hidden_size: own.HiddenSize = None,
    num_layers: own.NumLayers = None,
    intermediate_size: own.IntermediateSize = None,
    num_attention_heads: own.NumAttentionHeads = None,
    num_centroids: own.NumCentroids = None,
    top_clusters: own.TopClusters = None,
    val_batches: own.ValBatches = 25,
    steps_per_report: own.StepsPerReport = 10,
    steps_per_eval: own.StepsPerEval = 200,
    save_every: own.SaveEvery = 100,
    cache_dir: own.CacheDir = None,
    config: own.Config = None,
    dry_run: own.DryRun = False,
    as_json: own.AsJson = False,
) -> None:
    """Train a drafter for a target, which stays as it is.

    What the target makes of the text is computed once and kept on the disk. An interrupted run goes on where it was
    when the same command is given again, and ends with the same weights to the bit.
    """
    from mtp_mlx.training.begin import Plan
    from mtp_mlx.training.documents import read_documents
    from mtp_mlx.training.settings import Settings
    from mtp_mlx.training.shape import Shape

    settings = Settings(
        iters=iters,
        batch_size=batch_size,
        max_seq_length=max_seq_length,
        learning_rate=learning_rate,
        num_draft_tokens=num_draft_tokens,
        self_distill=self_distill,
        top_k=top_k,
        distribution_weight=distribution_weight,
        temperature=temp,
        seed=seed,
    )
    shape = Shape(hidden_size, num_layers, intermediate_size, num_attention_heads, num_centroids, top_clusters)
    if init is not None and shape != Shape():
        raise MisuseError("a drafter that is gone on with keeps its sizes", given=init, fix="leave out the sizes")
    every = {"val_batches": val_batches, "save_every": save_every, "steps_per_eval": steps_per_eval}
    plan = Plan(read_documents(data), output, settings, shape, init, adapter_path, cache_dir, **every)
    target, tokenizer = _load(model, plan)
    if dry_run:
        print_estimate(plan, target, tokenizer, as_json)
        return
    with Interrupt() as interrupt, TrainView(iters, steps_per_report) as view:
        try:
            begun = _begin(plan, target, tokenizer, view, interrupt)
        except StoppedError as stopped:
            view.note(f"stopped before the first step; what was done is kept, and {GO_ON}")
            raise typer.Exit(130) from stopped
        _train(begun.run, view, interrupt)
    _report(begun, as_json)


def _load(model: str, plan: "Plan"):
    from transformers.utils import logging

    from mtp_mlx import load

    bring(model)
    if plan.init is not None:
        bring(plan.init)
    with status(f"loading {model}"):
        logging.set_verbosity_error()  # its warnings are for programmers
        return load(model, plan.adapter_path)


def _begin(plan: "Plan", target, tokenizer, view: TrainView, interrupt: Interrupt) -> "Begun":
    from mtp_mlx.training.begin import begin

    def progress(what: str, done: int, total: int) -> None:
        view.prepared(what, done, total)
        interrupt.check()

    begun = begin(plan, target, tokenizer, progress)
    text, run = begun.text, begun.run
    held_out = "held out of it, because there is no validation file" if text.held_out else "of the validation file"
    view.note(
        f"text: {text.train.num_tokens:,} tokens in {len(text.train)} rows to train on; to validate with, "
        f"{text.valid.num_tokens:,} tokens in {len(text.valid)} rows {held_out}"
    )
    view.note(head_line(run.destination.config))
    if begun.steps_before:
        view.note(f"going on after step {begun.steps_before} of {run.settings.iters}")
    return begun


def _train(run: "Run", view: TrainView, interrupt: Interrupt) -> None:
    from mtp_mlx.training.run import Evaluated, Stepped

    for event in run.steps():
        if isinstance(event, Stepped):
            view.stepped(event)
        elif isinstance(event, Evaluated):
            view.evaluated(event.step, event.evaluation)
        if interrupt.requested and run.step < run.settings.iters:
            run.save()
            view.note(f"stopped and saved after step {run.step}; {GO_ON}")
            raise typer.Exit(130)


def _report(begun: "Begun", as_json: bool) -> None:
    run = begun.run
    if as_json:
        print(json.dumps(_to_dict(begun)))
        return
    print(run.destination.folder)
    first, last = run.history[0], run.history[-1]
    note(
        f"accepted drafts a round on text that was not trained on: {first['mean_accepted']:.2f} before, "
        f"{last['mean_accepted']:.2f} after ({shares(last['accepted'])} by position)"
    )


def _to_dict(begun: "Begun") -> dict[str, Any]:
    run, text = begun.run, begun.text
    return {
        "output": str(run.destination.folder),
        "steps": run.step,
        "steps_before": begun.steps_before,
        "train_tokens": text.train.num_tokens,
        "valid_tokens": text.valid.num_tokens,
        "held_out": text.held_out,
        "evaluations": run.history,
    }
