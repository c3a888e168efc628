"""Tests that need a GPU. Run them by `python -m pytest -m gpu`."""

import os

import pytest
import torch

# Deterministic matrix products need this. cuBLAS reads it at the first product of the process.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests without a GPU, and raise an error if only they were asked for."""
    if torch.cuda.is_available():
        return
    if config.option.markexpr == "gpu":
        raise pytest.UsageError("-m gpu needs a GPU that torch sees; there is none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="there is no GPU"))


@pytest.fixture(autouse=True)
def settings_as_before():
    """Restore the switches of torch that a test sets."""
    backends, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = (
        backends.benchmark,
        backends.deterministic,
        backends.allow_tf32,
        matmul.allow_tf32,
        torch.are_deterministic_algorithms_enabled(),
    )
    yield
    backends.benchmark, backends.deterministic, backends.allow_tf32 = before[:3]
    matmul.allow_tf32 = before[3]
    torch.use_deterministic_algorithms(before[4])
