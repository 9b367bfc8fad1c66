"""One generation of `mtp generate`: runs it, and tells what came of it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtp_cli.console import Output, PrefillBar, note
from mtp_cli.pair import Pair
from mtp_cli.sampling import GREEDY, SamplingOptions
from mtp_cli.statistics import closing_lines

if TYPE_CHECKING:
    from mtp_mlx import GenerationResponse
    from mtp_mlx.prompt_cache import PromptCache


@dataclass
class Generation:
    """One generation, and what came of it so far.

    Args:
        ids: the whole prompt.
        settings: further arguments of `stream_generate`.
        sampling: how tokens are drawn.
        cache_file: a prompt cache that is gone on from, where it exists, and written at the end; or None.
    """

    pair: Pair
    ids: list[int]
    settings: dict[str, Any]
    sampling: SamplingOptions
    cache_file: Path | None = None
    cached: int = 0
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    last: "GenerationResponse | None" = None

    def collect(self) -> None:
        for _ in self._responses():
            pass

    def stream(self, output: Output) -> None:
        """Writes the text as it comes, and leaves the cursor on a new line."""
        bar = PrefillBar()
        try:
            for response in self._responses(bar):
                bar.close()
                output.write(response.text)
        finally:
            bar.close()
            if self.text and not self.text.endswith("\n"):
                output.write("\n")

    def print_statistics(self) -> None:
        lines = ["=" * 10, *closing_lines(self.last, self.pair.drafts, self.cached)]
        if self.sampling.describe() != GREEDY:
            lines.append(f"Sampling: {self.sampling.describe()}")
        for line in lines:
            note(line)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        last, options = self.last, self.pair.options
        return {
            "model": options.model,
            "draft_model": None if options.no_draft else options.draft_model,
            "sampling": asdict(self.sampling),
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": last.finish_reason,
            "prompt_tokens": len(self.ids),
            "cached_tokens": self.cached,
            "generation_tokens": last.generation_tokens,
            "timings": {"prompt_tps": last.prompt_tps, "generation_tps": last.generation_tps},
            "peak_memory_gb": last.peak_memory,
            "speculation": last.speculation.to_dict() if self.pair.drafts else None,
        }

    def _responses(self, bar: PrefillBar | None = None) -> "Iterator[GenerationResponse]":
        from mtp_mlx import stream_generate
        from mtp_mlx.prompt_cache_file import save_prompt_cache

        cache = self._cache()
        new = cache.begin(self.ids)
        self.cached = len(self.ids) - len(new)

        def progress(done: int, total: int) -> None:
            if done:
                cache.mark()  # where another prompt can branch off
            if bar is not None:
                bar.update(done, total)

        for response in stream_generate(
            self.pair.model,
            self.pair.tokenizer,
            new,
            sampler=self.sampling.sampler(),
            logits_processors=cache.processors(self.sampling.processors()),
            prompt_cache=cache.cache,
            prompt_progress_callback=progress,
            **self.settings,
            **self.pair.draft_options,
        ):
            cache.record(response.token)
            self.text += response.text
            self.tokens.append(response.token)
            self.last = response
            yield response
        if self.cache_file is not None:
            save_prompt_cache(self.cache_file, cache)

    def _cache(self) -> "PromptCache":
        from mtp_mlx.prompt_cache import PromptCache
        from mtp_mlx.prompt_cache_file import load_prompt_cache

        if self.cache_file is not None and self.cache_file.exists():
            return load_prompt_cache(self.cache_file, self.pair.model)
        return PromptCache(self.pair.model)
