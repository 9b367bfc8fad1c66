"""The libraries that are compared, behind one interface: token ids in, token ids out, greedily, in float32.

Libraries are imported where they are used: each engine runs in a process of its own (`worker.py`), which loads nothing
of the others. All run on the same OpenBLAS.
"""

import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import mlx.core as mx
from mlx.utils import tree_map

from mtp_mlx.bench.batch import timed_batch
from mtp_mlx.bench.batch_report import BatchRun
from mtp_mlx.speculation import Speculation


class Engine(Protocol):
    """One library with one target, and its drafter where it has one.

    Attributes:
        name: the library and its version.
        traces: how many functions it is known to have compiled so far; 0 where it does not tell.
        speculation: statistics of the last generation.
    """

    name: str
    traces: int
    speculation: Speculation

    def tokens(self, prompt: list[int], num_tokens: int, drafts: int | str) -> Iterator[int]:
        """Emits `num_tokens` tokens, stop ids or not; `drafts` a round, 0 for plain decoding."""


class Ours:
    """`mtp_mlx`: `stream_generate`, text included; `generate_step` for a target without a tokenizer."""

    def __init__(self, target: Path, drafter: Path | None):
        from mtp_mlx import __version__, load, load_drafter, load_model

        self.name = f"mtp-mlx {__version__}"
        self.tokenizer = None
        if _has_tokenizer(target):
            self.model, self.tokenizer = load(target)
            self.tokenizer.eos_token_ids = []
        else:
            self.model, _ = load_model(target)
        self.drafter = None if drafter is None else load_drafter(drafter, self.model)
        self.speculation = Speculation()

    @property
    def traces(self) -> int:
        from mtp_mlx.decoding.compiled import round_for

        rounds = [round_for(self.model, drafter) for drafter in (None, self.drafter)]
        return sum(round.traces for round in rounds)

    def tokens(self, prompt: list[int], num_tokens: int, drafts: int | str) -> Iterator[int]:
        from mtp_mlx import generate_step, stream_generate

        drafter = None if drafts == 0 else self.drafter
        options = {"max_tokens": num_tokens, "draft_model": drafter, "num_draft_tokens": drafts}
        if self.tokenizer is None:
            for token, _, _ in generate_step(prompt, self.model, **options):
                yield token
            return
        for response in stream_generate(self.model, self.tokenizer, prompt, **options):
            self.speculation = response.speculation
            yield response.token


class MlxLm:
    """mlx-lm's `stream_generate` (`generate_step` without a tokenizer), plain; weights cast to float32."""

    traces = 0
    speculation = Speculation()

    def __init__(self, target: Path):
        from mlx_lm.utils import load, load_model

        self.name = f"mlx-lm {version('mlx-lm')}"
        self.tokenizer = None
        if _has_tokenizer(target):
            self.model, self.tokenizer = load(str(target))
            self.tokenizer.eos_token_ids = []
        else:
            self.model, _ = load_model(target)
        self.model.update(tree_map(_float32, self.model.parameters()))
        mx.eval(self.model.parameters())

    def tokens(self, prompt: list[int], num_tokens: int, drafts: int | str) -> Iterator[int]:
        from mlx_lm.generate import generate_step, stream_generate

        if self.tokenizer is None:
            for token, _ in generate_step(mx.array(prompt), self.model, max_tokens=num_tokens):
                yield token
            return
        for response in stream_generate(self.model, self.tokenizer, prompt, max_tokens=num_tokens):
            yield response.token


class MlxVlm:
    """mlx-vlm's `generate_step`, plain and MTP, without making text, on the pair as a multimodal checkpoint."""

    traces = 0

    def __init__(self, target: Path, drafter: Path):
        from mlx_vlm.speculative.drafters import load_drafter
        from mlx_vlm.utils import load_model

        from benchmarks.multimodal_checkpoint import write_pair

        self.name = f"mlx-vlm {version('mlx-vlm')}"
        with tempfile.TemporaryDirectory() as folder:
            target, drafter = write_pair(target, drafter, Path(folder))
            self.model = load_model(target)
            self.drafter, _ = load_drafter(str(drafter), kind="mtp")
        self.speculation = Speculation()

    def tokens(self, prompt: list[int], num_tokens: int, drafts: int | str) -> Iterator[int]:
        from mlx_vlm.generate.ar import generate_step

        mtp = {"draft_model": self.drafter, "draft_kind": "mtp", "draft_block_size": drafts + 1} if drafts else {}
        steps = generate_step(mx.array([prompt]), self.model, None, None, max_tokens=num_tokens, temperature=0.0, **mtp)
        for token, _ in steps:
            yield token
        rounds = zip(self.drafter.draft_lens, self.drafter.accept_lens, strict=True) if drafts else ()
        self.speculation = _summed(rounds)


class MlxVlmBatch(MlxVlm):
    """mlx-vlm's `BatchGenerator` with its MTP drafter: all rows begin together, none joins later."""

    def batch(self, prompts: list[list[int]], num_tokens: int, drafts: int) -> BatchRun:
        """Decodes all `prompts` at once."""
        from mlx_vlm.generate.ar import BatchGenerator

        generator = BatchGenerator(
            self.model,
            _NeverEnding(),
            max_tokens=num_tokens,
            completion_batch_size=len(prompts),
            prefill_batch_size=len(prompts),
            draft_model=self.drafter,
            draft_kind="mtp",
            draft_block_size=drafts + 1,
            greedy_sampling=True,
        )
        embedded = [self.model.get_input_embeddings(mx.array([prompt]), None).to_dict() for prompt in prompts]
        uids = generator.insert(prompts, num_tokens, embedded)
        emitted = [0]

        def step() -> list[tuple[int, int]]:
            tokens = []
            while not tokens and emitted[0] < num_tokens * len(prompts):
                _, responses = generator.next()
                tokens = [(uids.index(response.uid), response.token) for response in responses]
            emitted[0] += len(tokens)
            return tokens

        run = timed_batch(step, len(prompts))
        generator.close()
        return run


class _NeverEnding:
    """In place of a processor: nothing is a stop id."""

    def __init__(self):
        self.stopping_criteria = self

    def add_eos_token_ids(self, ids: set[int] | None) -> None:
        """There are none."""

    def __call__(self, token: int) -> bool:
        return False


def _summed(rounds: Sequence[tuple[int, int]]) -> Speculation:
    total = Speculation()
    for drafted, accepted in rounds:
        total = total.after(drafted, accepted)
    return total


def _has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer.json").exists()


def _float32(array: mx.array) -> mx.array:
    return array.astype(mx.float32) if array.dtype in (mx.bfloat16, mx.float16) else array
