"""`mtp chat`: a conversation in the terminal. stdout has the replies; everything else goes to stderr."""

import sys
from typing import Annotated

import typer

from mtp_cli import options
from mtp_cli.exact import note_exact
from mtp_cli.pair import PairOptions, load_pair
from mtp_cli.sampling import SamplingOptions

DEFAULT_MAX_TOKENS = 1024  # a long answer; a small model that repeats itself for ever ends there


def chat(
    context: typer.Context,
    system_prompt: options.SystemPrompt = None,
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Colour each token by where it came from.")
    ] = False,
    think: Annotated[bool, typer.Option("--think", help="Let the model think before it answers.")] = False,
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
    """Talk with a model. /help shows what can be typed."""
    pair_options = PairOptions.of(
        model, draft_model, no_draft, num_draft_tokens, exact, force, adapter_path, draft_position
    )
    sampling = SamplingOptions.of(context.params)
    from mtp_cli.conversation import ChatSettings, Conversation
    from mtp_cli.session import Session

    pair = load_pair(pair_options)
    settings = ChatSettings(max_tokens, prefill_step_size, sampling.of_model(pair.model, pair.tokenizer), think)
    note_exact(pair, 0, max_tokens)
    conversation = Conversation(pair, system_prompt, settings)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    session = Session(conversation, show_drafts, interactive)
    session.run()
    if session.failed and not interactive:
        raise typer.Exit(1)
