"""Tests that need a GPU: `python -m pytest -m gpu` on a machine that has one."""

import os

import pytest
import torch

# Deterministic products want it; cuBLAS reads it once, at the first product of the process.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a GPU, skip them in a run of all tests, and refuse a run of them alone."""
    if torch.cuda.is_available():
        return
    if config.option.markexpr == "gpu":
        raise pytest.UsageError("-m gpu needs a GPU that torch sees; there is none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="there is no GPU"))


@pytest.fixture(autouse=True)
def settings_as_before():
    """Switches of torch's that a test sets are put back."""
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
