"""What every decoder's configuration answers, whatever its family's config.json looks like.

A family reads its own file into a subclass (`gemma4_config.py`, `llama_config.py`; `registry.py` knows which). After
that nobody else needs to know the dialect: `config.layers[i]` has the answer.
"""

from dataclasses import dataclass
from typing import Any

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class LayerConfig:
    """One decoder layer, resolved.

    Attributes:
        owns_kv: whether it writes keys and values; otherwise it reads those of the last owner of its type.
        k_eq_v: whether its values are what its keys are before their norm.
    """

    layer_type: str
    head_dim: int
    num_key_value_heads: int
    intermediate_size: int
    owns_kv: bool = True
    k_eq_v: bool = False

    @property
    def is_sliding(self) -> bool:
        return self.layer_type == SLIDING


@dataclass(frozen=True)
class DecoderConfig:
    """A text decoder: a target, or the inner model of a drafter.

    Attributes:
        sliding_window: None where no layer is a sliding one.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    sliding_window: int | None
    layers: tuple[LayerConfig, ...]
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 131_072
    tie_word_embeddings: bool = True
    eos_token_ids: tuple[int, ...] = ()

    @property
    def kv_owners(self) -> tuple[int, ...]:
        """Indices of the layers that write keys and values of their own."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.owns_kv)

    @property
    def kv_types(self) -> tuple[str, ...]:
        """The layer types that have keys and values, which KV-shared layers and drafters can read."""
        owned = {self.layers[i].layer_type for i in self.kv_owners}
        return tuple(kind for kind in (SLIDING, FULL) if kind in owned)

    def last_owner(self, layer_type: str) -> int:
        """The layer whose keys and values the KV-shared layers and the drafter read."""
        return max(i for i in self.kv_owners if self.layers[i].layer_type == layer_type)

    def position_embeddings(self, layer_type: str) -> dict[str, Any]:
        """`rope_type`, `rope_theta`, and what the type needs beside them; a drafter's queries must rotate alike."""
        raise NotImplementedError

    @property
    def per_layer_width(self) -> int:
        """Width of what each layer is given beside the hidden state; 0 for nothing."""
        return 0

    def share_of_experts(self, rows: float) -> float:
        """The share of a mixture's experts that `rows` tokens choose, if they choose independently of each other."""
        return 1.0

    def with_small_tables(self, rows: int) -> "DecoderConfig":
        """The same with at most `rows` rows in tables that have no part in the head."""
        return self
