"""A tiny tokenizer in Gemma's style: BPE with byte fallback, "▁" for blanks, Gemma 4's control tokens and turns."""

import json
import string
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

VOCAB_SIZE = 384
# Names and ids as in Gemma 4.
CONTROL_TOKENS = {
    0: "<pad>",
    1: "<eos>",
    2: "<bos>",
    3: "<unk>",
    46: "<|tool>",
    47: "<tool|>",
    50: "<|tool_response>",
    98: "<|think|>",
    100: "<|channel>",
    101: "<channel|>",
    105: "<|turn>",
    106: "<turn|>",
}
MERGES = ["h e", "t he", "▁ the", "▁ a", "i n", "e r", "o u", "▁ s", "l l", "n d", "r e", "▁ b"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% if enable_thinking %}<|turn>system\n<|think|><turn|>\n{% endif %}"
    "{% for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)


def write_tokenizer(folder: Path) -> Path:
    """Writes tokenizer.json and tokenizer_config.json into `folder`."""
    _tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _tokenizer() -> Tokenizer:
    merges = [tuple(merge.split()) for merge in MERGES]
    bpe = models.BPE(vocab=_vocabulary(), merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL_TOKENS.values()])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return tokenizer


def _vocabulary() -> dict[str, int]:
    """Control tokens at their ids, and around them bytes, letters, what the merges make, and unused tokens."""
    tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += ["▁", "\n", *string.ascii_letters, *string.digits, *string.punctuation]
    tokens += [merge.replace(" ", "") for merge in MERGES]
    tokens += [f"<unused{n}>" for n in range(VOCAB_SIZE - len(tokens) - len(CONTROL_TOKENS))]
    fillers = iter(tokens)
    return {CONTROL_TOKENS[i] if i in CONTROL_TOKENS else next(fillers): i for i in range(VOCAB_SIZE)}
