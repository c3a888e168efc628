"""An image model's weights, as torchvision names them."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

WIDTH = 8


@pytest.fixture(scope="session")
def resnet() -> Callable[..., dict[str, Tensor]]:
    """`resnet((3, 4, 6, 3))`: torchvision's ResNet of bottleneck blocks, 1/8 as wide."""
    return _resnet


@cache
def _resnet(blocks: tuple[int, ...] = (3, 4, 6, 3)) -> dict[str, Tensor]:
    """As its older files are: without counters."""
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
    """A convolution and its batch normalisation."""
    spread = (2 / (channels * kernel**2)) ** 0.5
    parts = ("weight", "bias", "running_mean", "running_var")
    values = {f"{norm}.{part}": torch.rand(out) * 0.2 for part in parts}
    for part in ("weight", "running_var"):
        values[f"{norm}.{part}"] += 0.7
    return {f"{conv}.weight": torch.randn(out, channels, kernel, kernel) * spread} | values
