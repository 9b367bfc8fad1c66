"""A GGUF file as what a checkpoint folder has: a config.json, tensors, a tokenizer, a generation config."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mtp_weights.errors import UserError
from mtp_weights.gguf.header import Header, read_header
from mtp_weights.gguf.llama import ROPE_FACTORS, config_of, weights_of
from mtp_weights.gguf.tokenizer import special_ids, tokenizer_files

_ARCHITECTURES = ("llama",)
_GROUP_SIZE = 32  # of every quantization in GGUF that MLX keeps as such


class GgufFile:
    """One file with a whole model. Everything that is wrong with it is a UserError.

    Attributes:
        dtype: of the tensors, unless another one is asked for: that of the scales in most files.
    """

    dtype = "float16"

    def __init__(self, path: Path):
        self.path = path
        self.header: Header = read_header(path)
        architecture = self.header.metadata.get("general.architecture")
        if architecture not in _ARCHITECTURES:
            known = ", ".join(_ARCHITECTURES)
            raise UserError(
                "GGUF of this architecture cannot be read", given=f"{path}: {architecture!r}", fix=f"known are {known}"
            )

    @cached_property
    def config(self) -> dict[str, Any]:
        factors = self._array(ROPE_FACTORS) if ROPE_FACTORS in self.header.shapes else None
        config = config_of(self.header, None if factors is None else np.array(factors))
        ids = special_ids(self.header.metadata)
        return {**config, **{f"{role}_id": id for role, id in ids.items() if role != "unk_token"}}

    def weights(self) -> dict[str, mx.array]:
        """Tensor name, as checkpoints have it -> array in float32 or float16, not evaluated."""
        heads = (self.config[f"num_{kind}_heads"] for kind in ("attention", "key_value"))
        return weights_of(self.header, self._array, *heads)

    def files(self) -> dict[str, bytes]:
        """The other files of the folder: name -> content."""
        metadata, config = self.header.metadata, self.config
        generation = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in config}
        files = tokenizer_files(metadata, config["max_position_embeddings"])
        tokens = len(metadata["tokenizer.ggml.tokens"])
        if tokens > config["vocab_size"]:
            given = f"{tokens} tokens, {config['vocab_size']} embeddings"
            raise UserError("the GGUF file's tokenizer has more tokens than the model", given=given)
        return {**files, "generation_config.json": json.dumps(generation, indent=1).encode()}

    @cached_property
    def _tensors(self) -> dict[str, mx.array]:
        try:
            return mx.load(str(self.path))
        except RuntimeError as error:
            raise UserError("MLX cannot read the GGUF file", given=f"{self.path}: {error}") from error

    def _array(self, name: str) -> mx.array:
        """A tensor of the file; MLX keeps a quantized one as packed weights, scales and biases."""
        module = name.removesuffix(".weight")
        array, scales = self._tensors[name], self._tensors.get(f"{module}.scales")
        if scales is None or scales is array:
            return array
        inputs = scales.shape[-1] * _GROUP_SIZE
        scales, biases = (each.astype(mx.float32) for each in (scales, self._tensors[f"{module}.biases"]))
        return mx.dequantize(array, scales, biases, _GROUP_SIZE, array.shape[-1] * 32 // inputs)
