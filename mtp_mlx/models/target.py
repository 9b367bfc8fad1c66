"""What every target is, whatever its family: a decoder over a key-value store, a head, and a name.

Decoding, drafters, training and the bench ask a target for nothing but what is here. A family gives its layers and
says what it does otherwise (`gemma4.py`, `llama.py`). Layers know nothing of buffers or lengths: a *step* (see
`steps.py`) takes their keys and values and says what they may see.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn

from mtp_mlx.kv_cache import MAX_DRAFT_TOKENS, KVCache
from mtp_mlx.models.config import DecoderConfig
from mtp_mlx.models.memo import Memo
from mtp_mlx.steps import ChunkStep, Step, Uncached, step_for


class Decoder(nn.Module):
    """From token ids up to and including the final norm.

    Args:
        layers: called with hidden states [B, L, D] and a step; see `run`.
    """

    def __init__(self, config: DecoderConfig, layers: Sequence[nn.Module]):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = list(layers)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, inputs: mx.array, cache: KVCache | None = None) -> mx.array:
        """Token ids [B, L] -> hidden states [B, L, D] after the final norm, appending to `cache` where one is given."""
        if cache is None:
            return self.forward(inputs, Uncached(self.config, inputs.shape[1]))
        step = step_for(cache, inputs.shape[1])
        hidden = self.forward(inputs, step)
        step.commit()
        return hidden

    def forward(self, inputs: mx.array, step: Step) -> mx.array:
        """Runs `inputs` [B, L] through `step`, without committing them."""
        x = self.embed(inputs)
        return self.norm(self.run(range(len(self.layers)), x, self.per_layer_inputs(inputs, x), step))

    def prefill(self, inputs: mx.array, cache: KVCache) -> mx.array:
        """Appends a chunk of the prompt [B, L] and gives the hidden state of its last row [B, 1, D].

        KV-shared layers, which come after all others, compute that row only. It is lazy: leave it unevaluated for all
        chunks but the last.
        """
        step, owners = step_for(cache, inputs.shape[1]), len(self.config.kv_owners)
        x = self.embed(inputs)
        beside = self.per_layer_inputs(inputs, x)
        x = self.run(range(owners), x, beside, step)
        sharers = range(owners, len(self.layers))
        if isinstance(step, ChunkStep):
            x = self.run(sharers, x[:, -1:], None if beside is None else beside[:, -1:], step.last_row())
        else:
            x = self.run(sharers, x, beside, step)[:, -1:]
        step.commit()
        return self.norm(x)

    def embed(self, inputs: mx.array) -> mx.array:
        """Token ids [B, L] -> embeddings [B, L, D] as the first layer gets them; the drafter's input is the same."""
        return self.embed_tokens(inputs)

    def per_layer_inputs(self, inputs: mx.array, x: mx.array) -> mx.array | None:
        """What layers get beside the hidden states: [B, L, layers, width] of ids `inputs` with embeddings `x`."""
        return None

    def run(self, indices: Iterable[int], x: mx.array, per_layer: mx.array | None, step: Step) -> mx.array:
        """The layers at `indices`, one after another, on hidden states [B, L, D]."""
        for i in indices:
            x = self.layers[i](x, step)
        return x


class Target(nn.Module):
    """A decoder and its head.

    Attributes:
        name, path: the name it was loaded by and the folder it lies in; empty and None for a model built in memory.
        memo: what was derived from its weights.
    """

    def __init__(self, decoder: Decoder):
        super().__init__()
        self.config = decoder.config
        self.name = ""
        self.path: Path | None = None
        self.memo = Memo()
        self.model = decoder
        if not self.config.tie_word_embeddings:
            self.lm_head = nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)

    def __call__(self, inputs: mx.array, cache: KVCache | None = None) -> mx.array:
        """Token ids [B, L] -> logits [B, L, V], appending to `cache` where one is given."""
        return self.logits(self.model(inputs, cache))

    def logits(self, hidden: mx.array) -> mx.array:
        """Hidden states [B, L, D] after the final norm -> logits [B, L, V]."""
        tied = self.config.tie_word_embeddings
        return self.model.embed_tokens.as_linear(hidden) if tied else self.lm_head(hidden)

    def make_cache(self, slots: int = 1, max_draft_tokens: int = MAX_DRAFT_TOKENS) -> KVCache:
        """An empty key-value cache for `slots` sequences."""
        return KVCache(self.config, slots, max_draft_tokens)

    @property
    def layers(self) -> list[nn.Module]:
        return self.model.layers
