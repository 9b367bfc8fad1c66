"""What a checkpoint can be converted from: a folder, or a GGUF file."""

from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx

from mtp_weights.gguf import GgufFile
from mtp_weights.read import read_config, read_weights


class Folder:
    """A checkpoint folder, with what `GgufFile` has too.

    Attributes:
        dtype: None; its tensors have dtypes of their own.
    """

    dtype = None

    def __init__(self, path: Path):
        self.path = path

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_config(self.path)

    def weights(self) -> dict[str, mx.array]:
        """Tensor name, as the checkpoint has it -> array, not evaluated."""
        return read_weights(self.path)

    def files(self) -> dict[str, Path]:
        """Tokenizer, chat template and generation config, to be copied: name -> where it is."""
        files = (path for pattern in ("*.json", "*.jinja", "tokenizer*") for path in self.path.glob(pattern))
        return {
            path.name: path for path in files if path.name != "config.json" and not path.name.endswith("index.json")
        }


Source = Folder | GgufFile


def open_source(path: Path) -> Source:
    """The checkpoint at `path`; what is wrong with it shows when it is read."""
    return GgufFile(path) if path.suffix == ".gguf" else Folder(path)
