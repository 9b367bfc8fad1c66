"""The tokenizer in a GGUF file's metadata, as tokenizer.json and tokenizer_config.json.

Only byte-level BPE ("gpt2" in GGUF), with the pre-tokenizers that are known here: those of the models' own
tokenizer.json.
"""

import json
from typing import Any

from mtp_weights.errors import UserError

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGIT_BY_DIGIT = {"type": "Digits", "individual_digits": True}
# Llama 3's own pattern: contractions, words, up to three digits, punctuation, line ends, blanks.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLIT_LLAMA3 = {"type": "Split", "pattern": {"Regex": _LLAMA3}, "behavior": "Isolated", "invert": False}
_PRE_TOKENIZERS = {
    "gpt-2": [_BYTE_LEVEL],
    "smollm": [_DIGIT_BY_DIGIT, _BYTE_LEVEL],
    "llama-bpe": [_SPLIT_LLAMA3, {**_BYTE_LEVEL, "use_regex": False}],
}
_CONTROL, _USER_DEFINED = 3, 4
_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def tokenizer_files(metadata: dict[str, Any], context: int) -> dict[str, bytes]:
    """File name -> content.

    Args:
        context: tokens that the model was made for.

    Raises:
        UserError: another kind of tokenizer, or one that contradicts itself.
    """
    tokens = _tokens(metadata)
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(metadata, tokens),
        "normalizer": None,
        "pre_tokenizer": _pre_tokenizer(metadata),
        "post_processor": _post_processor(metadata, tokens),
        "decoder": _BYTE_LEVEL,
        "model": _bpe(metadata, tokens),
    }
    return {"tokenizer.json": _json(content), "tokenizer_config.json": _json(_config(metadata, tokens, context))}


def special_ids(metadata: dict[str, Any]) -> dict[str, int]:
    """The ids of bos_token, eos_token and so on, as far as the file names them."""
    found = {role: metadata.get(f"tokenizer.ggml.{name}_token_id") for role, name in _ROLES.items()}
    return {role: token for role, token in found.items() if token is not None}


def _tokens(metadata: dict[str, Any]) -> list[str]:
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        fix = "convert the model's original checkpoint instead"
        raise UserError("only byte-level BPE tokenizers can be taken from GGUF", given=f"tokenizer {kind!r}", fix=fix)
    tokens, merges = (metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "merges"))
    if not _are_texts(tokens) or not _are_texts(merges):
        raise UserError("the GGUF file's tokenizer lacks its tokens or merges")
    if len(set(tokens)) < len(tokens):
        raise UserError("the GGUF file's tokenizer has a token twice")
    ids = special_ids(metadata).values()
    wrong = next((id for id in ids if type(id) is not int or not 0 <= id < len(tokens)), None)
    if wrong is not None:
        given = f"a special one with the id {wrong}"
        raise UserError(f"the GGUF file's tokenizer has {len(tokens)} tokens", given=given)
    return tokens


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _added(metadata: dict[str, Any], tokens: list[str]) -> list[dict[str, Any]]:
    """Tokens that stand for themselves wherever they occur; control tokens among them are no text."""
    kinds = metadata.get("tokenizer.ggml.token_type") or []
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": id, "content": token, **plain, "special": kind == _CONTROL}
        for id, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _pre_tokenizer(metadata: dict[str, Any]) -> dict[str, Any]:
    name = metadata.get("tokenizer.ggml.pre")
    if name not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise UserError("the GGUF file's pre-tokenizer is not known", given=repr(name), fix=f"known are {known}")
    return {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[name]}


def _post_processor(metadata: dict[str, Any], tokens: list[str]) -> dict[str, Any] | None:
    """Puts the first token before a text, where the file says so."""
    first = special_ids(metadata).get("bos_token")
    if first is None or not metadata.get("tokenizer.ggml.add_bos_token", False):
        return None
    bos, text = {"SpecialToken": {"id": tokens[first], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    special = {tokens[first]: {"id": tokens[first], "ids": [first], "tokens": [tokens[first]]}}
    return {"type": "TemplateProcessing", "single": [bos, text], "pair": [bos, text, second], "special_tokens": special}


def _bpe(metadata: dict[str, Any], tokens: list[str]) -> dict[str, Any]:
    merges = [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]]
    known = set(tokens)
    wrong = next((pair for pair in merges if len(pair) != 2 or not {*pair, "".join(pair)} <= known), None)
    if wrong is not None:
        raise UserError("a merge of the GGUF file's tokenizer is not made of its tokens", given=" ".join(wrong))
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        # Llama 3 takes a word that is a token as it is, whether merges lead to it or not.
        "ignore_merges": metadata.get("tokenizer.ggml.pre") == "llama-bpe",
        "vocab": {token: id for id, token in enumerate(tokens)},
        "merges": merges,
    }


def _config(metadata: dict[str, Any], tokens: list[str], context: int) -> dict[str, Any]:
    template = metadata.get("tokenizer.chat_template")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{role: tokens[id] for role, id in special_ids(metadata).items()},
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        **({} if template is None else {"chat_template": template}),
    }


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=1).encode()
