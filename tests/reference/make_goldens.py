"""Makes the goldens of the parity tests with transformers on torch's CPU backend.

From the root of the repository, with the packages that made the committed files:

    pip install -e '.[reference]' torch==2.13.0 transformers==5.24.0
    python -m tests.reference.make_goldens

It writes, for each architecture of `tests/tiny.py` that transformers has:

    goldens/NAME.safetensors    logits, hidden states, greedy tokens of the target; drafts, logits, projected hidden
                                states of both its drafters, after prompts around and beyond the sliding window
    saved/NAME.json             the target's config.json as transformers' `save_pretrained` writes it
    saved/NAME-HEAD.json        the same of its drafter with a clustered or full head

Weights are not stored: `tests/tiny.py` makes the same ones again. Running it again gives the same files.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator
from transformers.utils import ModelOutput

from tests.reference.names import WITH_GOLDENS
from tests.tiny import drafter_config, target_config, write_drafter, write_target

FOLDER = Path(__file__).parent
LENGTH = 48  # of the sequence whose logits are compared: two to four windows
PROMPT_LENGTH, GREEDY_TOKENS = 20, 96
DRAFT_TOKENS = 5
NO_WINDOW = 16  # lengths of prompts as if there were one
DRAFTERS = {
    "gemma4_assistant": transformers.Gemma4AssistantForCausalLM,
    "gemma4_unified_assistant": transformers.Gemma4UnifiedAssistantForCausalLM,
}
Tensors = dict[str, torch.Tensor]


def main() -> None:
    torch.set_num_threads(1)  # sums in one order
    transformers.utils.logging.disable_progress_bar()
    for folder in ("goldens", "saved"):
        (FOLDER / folder).mkdir(exist_ok=True)
    for name in WITH_GOLDENS:
        with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
            tensors = goldens(name, Path(scratch))
        save_file(tensors, FOLDER / "goldens" / f"{name}.safetensors")
        print(name, {key: tuple(tensor.shape) for key, tensor in tensors.items()})


def goldens(name: str, scratch: Path) -> Tensors:
    config = target_config(name)
    target = load(write_target(scratch / "target", config))
    save_config(target, name)
    ids = sequence(config["vocab_size"])
    tensors = {"ids": ids[0], **forward(target, ids), "greedy": greedy(target, ids[:, :PROMPT_LENGTH])}
    lengths = prompt_lengths(config.get("sliding_window", NO_WINDOW))
    tensors["prompt_lengths"] = torch.tensor(lengths)
    for head in ("clustered", "full"):
        drafter = load(write_drafter(scratch / head, drafter_config(config, clustered=head == "clustered")))
        save_config(drafter, f"{name}-{head}")
        rounds = [draft(target, drafter, ids[:, :length]) for length in lengths]
        tensors |= {f"{head}.{key}": torch.stack([round[key] for round in rounds]) for key in rounds[0]}
    return {key: compact(tensor) for key, tensor in tensors.items()}


def sequence(vocab_size: int) -> torch.Tensor:
    """BOS and random ids [1, LENGTH]."""
    random = np.random.RandomState(0)
    return torch.tensor([[2, *random.randint(3, vocab_size, LENGTH - 1)]])


def prompt_lengths(window: int) -> list[int]:
    """Prompts inside the window, one by one across its border, and far beyond."""
    return [5, window - 1, window, window + 1, window + 2, LENGTH]


def load(folder: Path) -> transformers.PreTrainedModel:
    """Loads a checkpoint and makes sure that it is exactly what transformers' model needs."""
    model_type = transformers.AutoConfig.from_pretrained(folder).model_type
    model_class = DRAFTERS.get(model_type, transformers.AutoModelForCausalLM)
    model, report = model_class.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    wrong = report["missing_keys"] | report["unexpected_keys"] | report["mismatched_keys"]
    assert not wrong, wrong
    return model.eval()


def save_config(model: transformers.PreTrainedModel, name: str) -> None:
    (FOLDER / "saved" / f"{name}.json").write_text(model.config.to_json_string())


def forward(target: transformers.PreTrainedModel, ids: torch.Tensor) -> Tensors:
    out = target(ids, output_hidden_states=True, use_cache=False)
    return {"logits": out.logits[0], "hidden": out.hidden_states[-1][0]}


def greedy(target: transformers.PreTrainedModel, prompt: torch.Tensor) -> torch.Tensor:
    """The first GREEDY_TOKENS tokens after `prompt`; no id ends them."""
    target.generation_config.eos_token_id = None
    out = target.generate(prompt, do_sample=False, max_new_tokens=GREEDY_TOKENS)
    return out[0, prompt.shape[1] :]


def draft(target: transformers.PreTrainedModel, drafter: transformers.PreTrainedModel, prompt: torch.Tensor) -> Tensors:
    """The first round after `prompt`, by transformers' own candidate generator."""
    out = forward_for_drafter(target, prompt)
    first = out.logits[:, -1:].argmax(-1)
    settings = transformers.GenerationConfig(max_length=10 * LENGTH)
    drafter.generation_config.num_assistant_tokens = DRAFT_TOKENS
    generator = SinglePositionMultiTokenCandidateGenerator(drafter, target.get_input_embeddings(), settings)
    projected: list[torch.Tensor] = []
    hook = drafter.register_forward_hook(lambda *call: projected.append(call[-1].last_hidden_state[0, 0]))
    candidates, logits = generator.get_candidates(
        torch.cat([prompt, first], dim=1), {}, out, is_first_iteration=False, n_last_matches=0
    )
    hook.remove()
    return {"tokens": candidates[0, prompt.shape[1] :], "logits": logits[0], "projected": torch.stack(projected)}


def forward_for_drafter(target: transformers.PreTrainedModel, prompt: torch.Tensor) -> ModelOutput:
    """What transformers' drafters are given by a target; Llama does not know of them: its last layer's cache serves."""
    if target.config.model_type != "llama":
        return target(prompt, output_hidden_states=True, return_shared_kv_states=True, use_cache=False)
    out = target(prompt, output_hidden_states=True, use_cache=True)
    last = out.past_key_values.layers[-1]
    # Drafters make a mask for each type, whether or not they have layers of it.
    out["shared_kv_states"] = dict.fromkeys(("full_attention", "sliding_attention"), (last.keys, last.values))
    return out


def compact(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous() if tensor.is_floating_point() else tensor.to(torch.int32).contiguous()


if __name__ == "__main__":
    main()
