"""Fixtures: an image model under torchvision's names, its features, and the last log message."""

import logging
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

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


@pytest.fixture(scope="session")
def image_features() -> Callable[..., Tensor]:
    """Provide `image_features(state, x, enter)`, torchvision's ResNet-50 in evaluation.

    It returns the last feature map, (N, 32·width, H, W). `enter` is applied to the input of the
    residual branch of every block.
    """
    return _features


def _features(
    state: dict[str, Tensor], x: Tensor, enter: Callable[[Tensor], Tensor] = lambda x: x
) -> Tensor:
    def conv(conv: str, norm: str, x: Tensor, **options: int) -> Tensor:
        parts = ("running_mean", "running_var", "weight", "bias")
        out = F.conv2d(x, state[f"{conv}.weight"], **options)
        return F.batch_norm(out, *(state[f"{norm}.{part}"] for part in parts))

    x = F.max_pool2d(F.relu(conv("conv1", "bn1", x, stride=2, padding=3)), 3, 2, 1)
    for stage, count in enumerate((3, 4, 6, 3), 1):
        for block in range(count):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            out = F.relu(conv(f"{name}.conv1", f"{name}.bn1", enter(x)))
            out = F.relu(conv(f"{name}.conv2", f"{name}.bn2", out, stride=stride, padding=1))
            out = conv(f"{name}.conv3", f"{name}.bn3", out)
            if block == 0:
                x = conv(f"{name}.downsample.0", f"{name}.downsample.1", x, stride=stride)
            x = F.relu(x + out)
    return x
