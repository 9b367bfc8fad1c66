"""The architectures of `tests/tiny.py` that transformers has too, so that there are goldens of them."""

from tests.tiny import ARCHITECTURES

WITH_GOLDENS = [name for name in ARCHITECTURES if name != "llama-sliding"]  # only mlx-lm's Llama has sliding layers
