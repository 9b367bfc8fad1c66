"""What the figures were measured on."""

import os
import platform
from dataclasses import dataclass

import mlx.core as mx

import mtp_weights


@dataclass(frozen=True)
class Machine:
    """The machine and the software that computes.

    Attributes:
        blas: what float32 products on the CPU run on, see `mtp_weights.openblas`; it says nothing of a GPU.
    """

    system: str
    processor: str
    cores: int
    device: str
    mlx: str
    blas: str


def this_machine() -> Machine:
    """Describes the machine this runs on."""
    device = mx.default_device()
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        processor=str(mx.device_info(device).get("device_name", platform.machine())),
        cores=os.cpu_count() or 1,
        device="gpu" if device.type == mx.DeviceType.gpu else "cpu",
        mlx=mx.__version__,
        blas=mtp_weights.BLAS.name,
    )
