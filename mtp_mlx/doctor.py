"""What `mtp doctor` looks at: the machine, the software, and the way to models. Each check is one function.

Nothing here changes anything; commands that would are only named.
"""

import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from subprocess import run
from typing import Any

import mlx.core as mx
from huggingface_hub import constants, get_token
from huggingface_hub.errors import HTTPError
from huggingface_hub.utils import get_session
from packaging.requirements import Requirement

import mtp_weights
from mtp_mlx.bench.machine import this_machine
from mtp_mlx.memory import ON_CPU, available, gigabytes
from mtp_weights.errors import UserError
from mtp_weights.hub import cached_repositories, snapshot_of
from mtp_weights.pairs import DEMO_DRAFTER, DEMO_TARGET, bundled_folder
from mtp_weights.read import read_weights

OK, WARNING, ERROR = "ok", "warning", "error"

OLDEST_MACOS = (14, 0)  # MLX's own requirement
LITTLE_DISK = 10e9  # less than most pairs take
NEEDED_BY_SYSTEM = 6e9  # what macOS and a few programs want to have beside a model
TIMEOUT_SECONDS = 4.0


@dataclass(frozen=True)
class Check:
    """One finding.

    Attributes:
        state: OK, WARNING (it works, but not as well as it could) or ERROR (something will not work).
        fix: what to do about it.
    """

    name: str
    state: str
    text: str
    fix: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine() -> list[Check]:
    """Runs every check."""
    return [check() for check in CHECKS]


def worst(checks: Sequence[Check]) -> str:
    """The gravest state of all."""
    states = {check.state for check in checks}
    return next(state for state in (ERROR, WARNING, OK) if state in states)


def system() -> Check:
    machine, processor = this_machine(), platform.machine()
    text = f"{machine.processor}, {machine.cores} cores, {machine.system}, Python {platform.python_version()}"
    if sys.platform != "darwin":
        return Check("machine", OK, text)
    release = platform.mac_ver()[0]
    if processor != "arm64":
        fix = "on an Apple Silicon Mac, install a Python for arm64; this one runs in Rosetta"
        return Check("machine", ERROR, f"{text}: MLX needs Apple Silicon, this Python is for {processor}", fix)
    if tuple(map(int, release.split(".")[:2])) < OLDEST_MACOS:
        return Check("machine", ERROR, f"{text}: MLX needs macOS 14", "update macOS")
    return Check("machine", OK, f"{text}, macOS {release}")


def packages() -> Check:
    """Whether what mtp needs is there, in versions that it works with."""
    try:
        wanted = [Requirement(line) for line in requires("mtp-mlx")]
    except PackageNotFoundError:
        return Check("packages", WARNING, "mtp-mlx itself is not installed", "pip install -e . in its folder")
    wanted = [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    found = {each.name: _version(each.name) for each in wanted}
    text = ", ".join(f"{name} {number or 'missing'}" for name, number in found.items())
    bad = [each for each in wanted if found[each.name] is None or not each.specifier.contains(found[each.name], True)]
    if bad:
        return Check("packages", ERROR, text, "pip install -U " + " ".join(f"'{e.name}{e.specifier}'" for e in bad))
    return Check("packages", OK, text)


def device() -> Check:
    """Whether MLX computes, and on what."""
    total = mx.full((64, 64), 2.0) @ mx.full((64, 64), 0.5)
    if total.sum().item() != 64.0**3:
        return Check("device", ERROR, "MLX computes wrong sums here", "pip install --force-reinstall mlx")
    if not ON_CPU:
        return Check("device", OK, "MLX computes on the GPU")
    if sys.platform == "darwin":
        return Check("device", WARNING, "MLX computes on the CPU", "use MLX's default device, the GPU")
    return Check("device", OK, "MLX computes on the CPU: right for the demo pair and for tests, slow for real models")


def blas() -> Check:
    """What float32 products run on, where that is the CPU."""
    found = mtp_weights.BLAS
    if not ON_CPU or found.name != "reference":
        return Check("BLAS", OK, found.name)
    problem = found.problem or "mlx.core was imported before mtp_mlx"
    text = f"MLX's own reference BLAS, about 40 times slower than OpenBLAS: {problem}"
    return Check("BLAS", WARNING, text, found.fix or "import mtp_mlx first")


def compiler() -> Check:
    """On Linux, MLX fuses operations with a C++ compiler that it finds when it runs."""
    if sys.platform != "linux" or not ON_CPU:
        return Check("compiler", OK, "not needed here")
    found = shutil.which("g++")
    if found is None:
        return Check(
            "compiler", WARNING, "no g++: operations are not fused", "install a C++ compiler (apt install g++)"
        )
    return Check("compiler", OK, f"{found} fuses operations, which takes some seconds once")


def memory() -> Check:
    """What a model may take, and on a Mac how to let it take more."""
    total = physical_memory()
    text = f"{gigabytes(total)}, of which a model can have {gigabytes(available())}"
    if ON_CPU:
        return Check("memory", OK, text)
    if (limit := wired_limit()) is not None:
        text += f"; the wired limit is set to {gigabytes(limit)}"
    more = int(max(total - NEEDED_BY_SYSTEM, total * 0.75) / 2**20)
    if available() / 2**20 >= more * 0.95:
        return Check("memory", OK, text)
    return Check("memory", OK, text, f"for a larger model: sudo sysctl iogpu.wired_limit_mb={more} (until a restart)")


def disk() -> Check:
    cache = Path(constants.HF_HUB_CACHE)
    folder = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    text = f"{gigabytes(free)} free where models are kept"
    if free < LITTLE_DISK:
        return Check("disk", WARNING, text, "free some space, or keep the cache elsewhere (HF_HOME)")
    return Check("disk", OK, text)


def cache() -> Check:
    folder = Path(constants.HF_HUB_CACHE)
    if folder.exists() and not os.access(folder, os.W_OK):
        return Check("cache", ERROR, f"{folder} cannot be written", "check its permissions")
    repositories = [name for name in cached_repositories() if "gemma-4" in name.lower()]
    partly = [name for name in repositories if snapshot_of(name) is None]
    text = f"{folder}, with {len(repositories)} Gemma 4 repositories"
    if partly:
        return Check("cache", WARNING, f"{text}, incomplete: {', '.join(partly)}", f"mtp pull {partly[0]}")
    return Check("cache", OK, text)


def token() -> Check:
    if get_token() is None:
        return Check("token", OK, "none: public repositories can be downloaded, gated ones need `hf auth login`")
    return Check("token", OK, "there is one for the hub")


def hub() -> Check:
    """Whether the hub can be reached."""
    if constants.HF_HUB_OFFLINE:
        return Check("hub", WARNING, "its client is set to work offline", "unset HF_HUB_OFFLINE to download models")
    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT_SECONDS)
    except (HTTPError, OSError) as error:
        text = f"{constants.ENDPOINT} cannot be reached ({type(error).__name__}): models in the cache still work"
        return Check("hub", WARNING, text, "check the connection to download models")
    return Check("hub", OK, f"{constants.ENDPOINT} answers")


def demo() -> Check:
    try:
        for name in (DEMO_TARGET, DEMO_DRAFTER):
            read_weights(bundled_folder(name))
    except UserError as error:
        return Check("demo pair", ERROR, str(error), "install mtp-mlx again")
    return Check("demo pair", OK, "complete")


def physical_memory() -> int:
    """Bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def wired_limit() -> int | None:
    """The limit that was set for wired memory in bytes, or None where macOS decides, and on other systems."""
    if sys.platform != "darwin":
        return None
    answer = run(["sysctl", "-n", "iogpu.wired_limit_mb"], capture_output=True, text=True, check=False).stdout.strip()
    return int(answer) * 2**20 if answer.isdigit() and answer != "0" else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


CHECKS: tuple[Callable[[], Check], ...] = (
    system,
    packages,
    device,
    blas,
    compiler,
    memory,
    disk,
    cache,
    token,
    hub,
    demo,
)
