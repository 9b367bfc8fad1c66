"""Trains the demo tokenizer: 4096 entries, byte-fallback BPE as Gemma has, Gemma 4's control ids."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

VOCAB_SIZE = 4096
# Names and ids as in Gemma 4; image, audio and video tokens have no use here.
CONTROL_TOKENS = {
    0: "<pad>",
    1: "<eos>",
    2: "<bos>",
    3: "<unk>",
    46: "<|tool>",
    47: "<tool|>",
    48: "<|tool_call>",
    49: "<tool_call|>",
    50: "<|tool_response>",
    51: "<tool_response|>",
    52: '<|"|>',
    98: "<|think|>",
    100: "<|channel>",
    101: "<channel|>",
    105: "<|turn>",
    106: "<turn|>",
}
# A line break with the indentation after it, a word, a digit, punctuation, or a run of blanks.
PIECES = r"\n+▁*|▁?\p{L}+|\p{N}|▁?[^▁\s\p{L}\p{N}]+|▁+|\s"


def documents_text(path: Path) -> Iterator[str]:
    """The training side of the documents; each dialogue turn is one text."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            document = json.loads(line)
            if document["split"] != "train":
                continue
            if "text" in document:
                yield document["text"]
            else:
                yield from (message["content"] for message in document["messages"])


def pipeline(model: models.BPE) -> Tokenizer:
    """Normalizer, pre-tokenizer and decoder of the finished tokenizer around `model`."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def learn_merges(texts: Iterator[str], entries: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Ordinary tokens in the order in which they were learned, and their merges."""
    tokenizer = pipeline(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=entries, limit_alphabet=110, special_tokens=[], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return tokens, [tuple(merge) for merge in model["merges"]]


def vocabulary(tokens: list[str]) -> dict[str, int]:
    """Control tokens at their ids; bytes, then ordinary tokens, in all the others in order."""
    fillers = iter([f"<0x{byte:02X}>" for byte in range(256)] + tokens)
    return {CONTROL_TOKENS[i] if i in CONTROL_TOKENS else next(fillers): i for i in range(VOCAB_SIZE)}


def build(texts: Iterator[str]) -> Tokenizer:
    tokens, merges = learn_merges(texts, VOCAB_SIZE - len(CONTROL_TOKENS) - 256)
    model = models.BPE(vocab=vocabulary(tokens), merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = pipeline(model)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL_TOKENS.values()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)]
    )
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    wrapped.chat_template = Path(__file__).with_name("chat_template.jinja").read_text("utf-8").strip()
    wrapped.save_pretrained(folder)
    # transformers 5 writes its own backend's name here; this one is known to transformers 4 as well.
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text("utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config, indent=1) + "\n", "utf-8")


def check(folder: Path) -> None:
    """Ids of control tokens, BOS exactly once, and round trips of awkward text."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for token_id, name in CONTROL_TOKENS.items():
        assert tokenizer.convert_tokens_to_ids(name) == token_id, name
    assert len(tokenizer) == VOCAB_SIZE
    for text in ("Hello, world!", "  two  blanks\n\n\tdef f(x):\n        return x\n", "naïve 東京 🙂 ▲", ""):
        ids = tokenizer.encode(text)
        assert ids[0] == 2 and ids.count(2) == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == text, text
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False, enable_thinking=False
    )
    assert prompt == "<bos><|turn>user\nHi<turn|>\n<|turn>model\n", prompt
    assert tokenizer.encode(prompt, add_special_tokens=False).count(2) == 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=Path, required=True, help="documents.jsonl from corpus.py")
    parser.add_argument("--output", type=Path, required=True, help="folder for the tokenizer files")
    args = parser.parse_args()
    save(build(documents_text(args.documents)), args.output)
    check(args.output)
    print(f"{VOCAB_SIZE} tokens -> {args.output}")


if __name__ == "__main__":
    main()
