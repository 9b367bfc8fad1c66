"""Which modules of a checkpoint to quantize, and to how many bits each.

Told from canonical names (`layout.py`) and shapes alone, so that it serves a conversion, which has tensors, as well as
an estimate of what a conversion would weigh, which has none. The table of per-layer embeddings and the router lose more
than others and stay at 8 bits; the clustered head's centroids, which choose among all tokens, are never quantized.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

from mtp_weights.errors import MisuseError
from mtp_weights.quantization import parameters_of

MODES = ("affine", "mxfp4", "nvfp4", "mxfp8")
# mlx-lm's names for recipes of two widths -> (most modules, sensitive ones).
MIXED = {"mixed_2_6": (2, 6), "mixed_3_4": (3, 4), "mixed_3_6": (3, 6), "mixed_4_6": (4, 6)}
_FLOOR = {"group_size": 64, "bits": 8, "mode": "affine"}
_SENSITIVE = ("embed_tokens_per_layer", "router.proj")
_UNTOUCHED = "masked_embedding."
_LAYER = re.compile(r"\.layers\.(\d+)\.")

Parameters = dict[str, Any]  # {"group_size", "bits", "mode"}


@dataclass(frozen=True)
class Recipe:
    """How to quantize a checkpoint.

    Attributes:
        parameters: for most modules.
        high_bits: with a mixed recipe, the width of values and down-projections in the layers where it matters most
            (the first and last eighth, and every third between), and of the head.
        num_layers: of the checkpoint; only a mixed recipe needs it.
        keeps_sensitive: whether per-layer embeddings and router stay at 8 bits at least.
    """

    parameters: Parameters
    high_bits: int | None = None
    num_layers: int = 0
    keeps_sensitive: bool = True

    @classmethod
    def of(
        cls,
        bits: int | None = None,
        group_size: int | None = None,
        mode: str = "affine",
        mixed: str | None = None,
        num_layers: int = 0,
    ) -> "Recipe":
        """The recipe for mlx-lm's options; what is not given is MLX's default for the mode.

        Raises:
            MisuseError: options that exclude each other.
            UserError: MLX has no such quantization.
        """
        if mixed is None:
            return cls(parameters_of({"bits": bits, "group_size": group_size, "mode": mode}, "the checkpoint"))
        if mixed not in MIXED:
            raise MisuseError("no such recipe", given=mixed, fix=f"there are {', '.join(MIXED)}")
        if mode != "affine" or bits is not None:
            raise MisuseError("a recipe of two widths is affine and has its own bits", given=mixed)
        low, high = MIXED[mixed]
        return cls(parameters_of({"bits": low, "group_size": group_size}, "the checkpoint"), high, num_layers)

    def for_tensor(self, name: str, shape: tuple[int, ...]) -> Parameters | None:
        """How to quantize the tensor called `name`, or None to leave it as it is."""
        path, _, kind = name.rpartition(".")
        if kind != "weight" or len(shape) < 2 or path.startswith(_UNTOUCHED):
            return None
        parameters = self._for_module(path)
        divides = shape[-1] % parameters["group_size"] == 0
        return parameters if divides else None

    def _for_module(self, path: str) -> Parameters:
        if self.keeps_sensitive and path.endswith(_SENSITIVE):
            return self.parameters if self.parameters["bits"] >= 8 else _FLOOR
        if self.high_bits is not None and self._matters(path):
            return {**self.parameters, "bits": self.high_bits}
        return self.parameters

    def _matters(self, path: str) -> bool:
        if path.endswith(("lm_head", ".embed_tokens")):
            return True
        layer = _LAYER.search(path)
        if layer is None or not path.endswith(("v_proj", "down_proj")):
            return False
        index, eighth = int(layer[1]), self.num_layers // 8
        return index < eighth or index >= self.num_layers - eighth or (index - eighth) % 3 == 2


def nbytes(shape: tuple[int, ...], parameters: Parameters | None, item_bytes: int) -> int:
    """Bytes of a tensor, with its scales and biases where it is quantized by `parameters`.

    Args:
        item_bytes: of a number that is not quantized, a scale of affine quantization included.
    """
    size = math.prod(shape)
    if parameters is None:
        return size * item_bytes
    scale_bytes = 2 * item_bytes if parameters["mode"] == "affine" else 1
    return size * parameters["bits"] // 8 + size // parameters["group_size"] * scale_bytes
