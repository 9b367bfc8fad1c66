"""GGUF files: checked, and read as a checkpoint folder of the same model would be."""

from mtp_weights.gguf.read import GGUF_SUFFIX, GgufFile

__all__ = ["GGUF_SUFFIX", "GgufFile"]
