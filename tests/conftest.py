"""MLX is imported before mtp_mlx, so it keeps its reference BLAS: then every width of a forward pass gives the same
bits, and the tests can demand equality (see mtp_weights/openblas.py)."""

import signal

import mlx.core as mx  # noqa: F401
import pytest

# A shell that runs the tests in the background has them ignore Ctrl-C, and every program that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--fuzz-cases", type=int, default=60, help="cases of the losslessness fuzz")
    parser.addoption("--fuzz-seed", type=int, default=20261130, help="where the losslessness fuzz starts")
    parser.addoption("--all-chains", action="store_true", help="convert, verify and bench in every combination")
    parser.addoption("--all-distributions", action="store_true", help="test sampling in every combination")


@pytest.fixture
def fuzz_cases(request) -> int:
    return request.config.getoption("--fuzz-cases")


@pytest.fixture
def fuzz_seed(request) -> int:
    return request.config.getoption("--fuzz-seed")
