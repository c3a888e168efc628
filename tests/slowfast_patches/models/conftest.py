"""Fixtures: an image model under torchvision's names, and the last log message."""

import logging
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

WIDTH = 8


@pytest.fixture
def report(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Provide `report()`, which returns the last log message."""
    caplog.set_level(logging.INFO)
    return lambda: caplog.messages[-1]


@pytest.fixture(scope="session")
def resnet() -> Callable[..., dict[str, Tensor]]:
    """Provide `resnet((3, 4, 6, 3))`: the state dict of torchvision's ResNet-50, 1/8 as wide."""
    return _resnet


@cache
def _resnet(blocks: tuple[int, ...] = (3, 4, 6, 3)) -> dict[str, Tensor]:
    """Make a state dict without BN's counters, as torchvision's older files are."""
    torch.manual_seed(0)
    state = _layer("conv1", "bn1", WIDTH, 3, 7)
    channels = WIDTH
    for stage, count in enumerate(blocks):
        for block in range(count):
            name, inner = f"layer{stage + 1}.{block}", WIDTH * 2**stage
            state |= _layer(f"{name}.conv1", f"{name}.bn1", inner, channels, 1)
            state |= _layer(f"{name}.conv2", f"{name}.bn2", inner, inner, 3)
            state |= _layer(f"{name}.conv3", f"{name}.bn3", 4 * inner, inner, 1)
            if block == 0:
                down = f"{name}.downsample"
                state |= _layer(f"{down}.0", f"{down}.1", 4 * inner, channels, 1)
            channels = 4 * inner
    return state | {"fc.weight": torch.randn(1000, channels), "fc.bias": torch.randn(1000)}


def _layer(conv: str, norm: str, out: int, channels: int, kernel: int) -> dict[str, Tensor]:
    """Make the tensors of a convolution and its BN."""
    spread = (2 / (channels * kernel**2)) ** 0.5
    parts = ("weight", "bias", "running_mean", "running_var")
    values = {f"{norm}.{part}": torch.rand(out) * 0.2 for part in parts}
    for part in ("weight", "running_var"):
        values[f"{norm}.{part}"] += 0.7
    return {f"{conv}.weight": torch.randn(out, channels, kernel, kernel) * spread} | values
