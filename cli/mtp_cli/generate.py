"""`mtp generate`: one prompt, one reply. stdout has the text alone; statistics go to stderr."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtp_cli import options
from mtp_cli.console import Output, no_notes
from mtp_cli.exact import note_exact
from mtp_cli.pair import PairOptions, load_pair
from mtp_cli.sampling import SamplingOptions
from mtp_weights.errors import MisuseError, UserError

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

DEFAULT_MAX_TOKENS = 256  # mlx-lm's chat's


def generate(
    context: typer.Context,
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
    prefill_response: Annotated[
        str | None,
        typer.Option(
            "--prefill-response", metavar="TEXT", help="How the reply shall begin.", callback=options.check_text
        ),
    ] = None,
    chat_template_config: Annotated[
        str | None, typer.Option("--chat-template-config", metavar="JSON", help="Variables for the chat template.")
    ] = None,
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
    extra_eos_token: Annotated[
        list[str] | None,
        typer.Option("--extra-eos-token", metavar="TOKEN", help="End at this token; can be repeated."),
    ] = None,
    prompt_cache_file: Annotated[
        Path | None,
        typer.Option(
            "--prompt-cache-file",
            metavar="FILE",
            help="Keep what was processed here; the next run with it processes only what is new.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with all there is to know.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose/--quiet", help="Statistics on stderr, or nothing but errors.")
    ] = True,
    model: options.Model = "demo",
    draft_model: options.DraftModel = "auto",
    no_draft: options.NoDraft = False,
    num_draft_tokens: options.NumDraftTokens = "auto",
    draft_position: options.DraftPosition = None,
    adapter_path: options.AdapterPath = None,
    exact: options.Exact = False,
    force: options.Force = False,
    max_tokens: options.MaxTokens = DEFAULT_MAX_TOKENS,
    prefill_step_size: options.PrefillStepSize = 512,
    temp: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    min_tokens_to_keep: options.MinTokensToKeep = 1,
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
    from mtp_cli import prompt_input
    from mtp_cli.generation import Generation

    if not verbose:
        context.with_resource(no_notes())
    text = prompt_input.read_prompt(prompt, prompt_file)
    template = prompt_input.template_options(chat_template_config)
    _check_raw(raw, system_prompt=system_prompt, prefill_response=prefill_response, chat_template_config=template)
    pair_options = PairOptions.of(
        model, draft_model, no_draft, num_draft_tokens, exact, force, adapter_path, draft_position
    )
    sampling = SamplingOptions.of(context.params)
    pair = load_pair(pair_options)
    _add_eos_tokens(pair.tokenizer, extra_eos_token or [])
    sampling = sampling.of_model(pair.model, pair.tokenizer)
    ids = prompt_input.prompt_ids(pair, text, system_prompt, raw, prefill_response, template)
    note_exact(pair, len(ids), max_tokens)
    settings = {"max_tokens": max_tokens, "stop": stop or [], "prefill_step_size": prefill_step_size}
    run = Generation(pair, ids, settings, sampling, prompt_cache_file)
    if as_json:
        run.collect()
        print(json.dumps(run.to_dict(), ensure_ascii=False))
        return
    run.stream(Output())
    if verbose:
        run.print_statistics()


def _check_raw(raw: bool, **needs_template: object) -> None:
    given = next((name for name, value in needs_template.items() if value), None)
    if raw and given is not None:
        option = f"--{given.replace('_', '-')}"
        raise MisuseError(f"{option} needs the chat template", fix="leave out --raw, or put it in the prompt")


def _add_eos_tokens(tokenizer: "TokenizerWrapper", tokens: list[str]) -> None:
    for token in tokens:
        if token not in tokenizer.get_vocab():
            raise UserError("--extra-eos-token must be a token of the model", given=token)
        tokenizer.add_eos_token(token)
