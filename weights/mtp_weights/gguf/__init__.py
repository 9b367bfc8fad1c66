"""GGUF files: checked, and read as a checkpoint folder of the same model would be."""

from mtp_weights.gguf.read import GgufFile

__all__ = ["GgufFile"]
