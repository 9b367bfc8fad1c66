"""A tiny byte-level BPE as SmolLM2's: control tokens, one character for each byte, a few merges, a token for itself."""

VOCAB_SIZE = 384
_CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# GPT-2's characters for bytes: printable ones stand for themselves, the others begin at 256.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTES = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + n) for n, byte in enumerate(_OTHERS)}
MERGES = ["h e", "t he", "Ġ the", "Ġ a", "i n", "e r", "o u", "Ġ s", "l l", "n d", "r e", "Ġ b", "1 2"]
_TEXT = [*BYTES.values(), *(merge.replace(" ", "") for merge in MERGES)]
_UNUSED = [f"<unused{n}>" for n in range(VOCAB_SIZE - len(_CONTROL) - len(_TEXT) - 1)]
TOKENS = [*_CONTROL, *_TEXT, *_UNUSED, "<tool>"]
