"""Pathways made on a GPU equal those made on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slowfast_patches.models.inputs import InputTransform

pytestmark = pytest.mark.gpu

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def transform(
    device: torch.device,
    alpha: int | None = 4,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    reverse: bool = False,
) -> InputTransform:
    mean = torch.tensor([0.45, 0.1, 0.6], device=device).view(-1, 1, 1, 1)
    std = torch.tensor([0.225, 0.3, 0.2], device=device).view(-1, 1, 1, 1)
    return InputTransform(mean, std, alpha, reverse, device, dtype, channels_last)


def made_up(seed: int, *shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    clips = torch.randint(0, 256, (*shape, 3), generator=generator, dtype=torch.uint8)
    return clips, torch.rand(shape[0], generator=generator) < 0.5


def pinned(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Copy a batch into pinned memory, as a loader does."""
    return tuple(tensor.pin_memory() for tensor in batch)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("alpha", [None, 4, 8])
def test_the_gpus_pathways_are_the_cpus_to_the_last_bit(alpha, dtype, channels_last, reverse):
    options = (alpha, dtype, channels_last, reverse)
    ours, wanted = transform(GPU, *options), transform(CPU, *options)
    for number, shape in enumerate([(3, 8, 15, 17), (1, 16, 158, 158), (2, 8, 1, 1)]):
        batch = made_up(number, *shape)
        for given in (batch, pinned(batch)):
            for made, path in zip(ours(*given), wanted(*batch), strict=True):
                assert made.stride() == path.stride()
                assert torch.equal(made.cpu(), path)
