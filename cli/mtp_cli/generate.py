"""`mtp generate`: one prompt, one reply. stdout has the text alone; statistics go to stderr."""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtp_cli import options
from mtp_cli.console import Output, note
from mtp_cli.pair import Pair, PairOptions, load_pair
from mtp_cli.sampling import GREEDY, SamplingOptions
from mtp_cli.statistics import closing_lines
from mtp_weights.errors import MisuseError, UserError

if TYPE_CHECKING:
    from mtp_mlx import GenerationResponse

DEFAULT_MAX_TOKENS = 256  # mlx-lm's chat's


def generate(
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "-p",
            metavar="TEXT",
            help="The prompt; '-' reads it from stdin.",
            callback=options.check_text,
        ),
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt-file", metavar="FILE", help="Read the prompt from a text file.")
    ] = None,
    system_prompt: options.SystemPrompt = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", "--ignore-chat-template", help="Continue the prompt as it is, without a chat template."),
    ] = False,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop", metavar="TEXT", help="End before this text; can be repeated.", callback=options.check_text
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with all there is to know.")] = False,
    model: options.Model = "demo",
    draft_model: options.DraftModel = "auto",
    no_draft: options.NoDraft = False,
    num_draft_tokens: options.NumDraftTokens = "auto",
    max_tokens: options.MaxTokens = DEFAULT_MAX_TOKENS,
    prefill_step_size: options.PrefillStepSize = 512,
    temp: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    xtc_probability: options.XtcProbability = 0.0,
    xtc_threshold: options.XtcThreshold = 0.1,
    seed: options.Seed = None,
    draft_temp: options.DraftTemperature = None,
    lenient: options.Lenient = False,
    repetition_penalty: options.RepetitionPenalty = None,
    repetition_context_size: options.RepetitionContextSize = 20,
    presence_penalty: options.PresencePenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
) -> None:
    """Write a reply to a prompt."""
    text = _read_prompt(prompt, prompt_file)
    if raw and system_prompt is not None:
        raise MisuseError("--system-prompt needs the chat template", fix="leave out --raw, or put it in the prompt")
    pair_options = PairOptions.of(model, draft_model, no_draft, num_draft_tokens)
    sampling = SamplingOptions(
        temp,
        top_p,
        top_k,
        min_p,
        xtc_probability,
        xtc_threshold,
        seed,
        draft_temp,
        lenient,
        repetition_penalty,
        repetition_context_size,
        presence_penalty,
        frequency_penalty,
    ).check()
    pair = load_pair(pair_options)
    sampling = sampling.of_model(pair.model)
    ids = _prompt_ids(pair, text, system_prompt, raw)
    settings = {"max_tokens": max_tokens, "stop": stop or [], **sampling.arguments()}
    run = _Run(pair, ids, {**settings, "prefill_step_size": prefill_step_size}, sampling)
    if as_json:
        run.collect()
        print(json.dumps(run.to_dict(), ensure_ascii=False))
    else:
        run.stream(Output())
        run.print_statistics()


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise MisuseError("one prompt is needed", fix="give --prompt TEXT, --prompt - for stdin, or --prompt-file FILE")
    if file is not None:
        text = _decode(_read_file(file), str(file))
    elif prompt == "-":
        text = _decode(sys.stdin.buffer.read(), "stdin")
    else:
        text = prompt
    if not text.strip():
        raise MisuseError("the prompt is empty", fix="give it some text")
    return text


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(
            "cannot read the prompt file", given=f"{file}: {error.strerror}", fix="check the path"
        ) from error


def _decode(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError("the prompt must be UTF-8 text", given=f"{source}, byte {error.start}") from error


def _prompt_ids(pair: Pair, text: str, system_prompt: str | None, raw: bool) -> list[int]:
    from mtp_mlx.chat_template import render
    from mtp_mlx.generate import tokenize

    if raw:
        return tokenize(pair.tokenizer, text)
    if not pair.tokenizer.has_chat_template:
        if system_prompt is not None:
            raise UserError("the model has no chat template for a system prompt", fix="leave out --system-prompt")
        note("the model has no chat template: it continues the prompt as it is")
        return tokenize(pair.tokenizer, text)
    system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    return render(pair.tokenizer, [*system, {"role": "user", "content": text}])


@dataclass
class _Run:
    """One generation, and what came of it so far."""

    pair: Pair
    ids: list[int]
    settings: dict[str, Any]
    sampling: SamplingOptions
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    last: "GenerationResponse | None" = None

    def responses(self):
        from mtp_mlx import stream_generate

        for response in stream_generate(
            self.pair.model, self.pair.tokenizer, self.ids, **self.settings, **self.pair.draft_options
        ):
            self.text += response.text
            self.tokens.append(response.token)
            self.last = response
            yield response

    def collect(self) -> None:
        for _ in self.responses():
            pass

    def stream(self, output: Output) -> None:
        """Writes the text as it comes, and leaves the cursor on a new line."""
        try:
            for response in self.responses():
                output.write(response.text)
        finally:
            if self.text and not self.text.endswith("\n"):
                output.write("\n")

    def print_statistics(self) -> None:
        lines = ["=" * 10, *closing_lines(self.last, self.pair.drafts)]
        if self.sampling.describe() != GREEDY:
            lines.append(f"Sampling: {self.sampling.describe()}")
        for line in lines:
            note(line)

    def to_dict(self) -> dict[str, Any]:
        last, options = self.last, self.pair.options
        return {
            "model": options.model,
            "draft_model": None if options.no_draft else options.draft_model,
            "sampling": asdict(self.sampling),
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": last.finish_reason,
            "prompt_tokens": last.prompt_tokens,
            "generation_tokens": last.generation_tokens,
            "timings": {"prompt_tps": last.prompt_tps, "generation_tps": last.generation_tps},
            "peak_memory_gb": last.peak_memory,
            "speculation": last.speculation.to_dict() if self.pair.drafts else None,
        }
