"""BN over groups of clips has the same results on a GPU and on a CPU."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from multigrid.batchnorm import GroupedBatchNorm3d

pytestmark = pytest.mark.gpu


def _train(module: nn.Module, x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    """Return the output and the gradients of x and of the parameters."""
    x = x.detach().requires_grad_()
    output = module(x)
    return (output.detach(), *torch.autograd.grad(output, (x, *module.parameters()), grad))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d], ids=str)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_agrees_with_the_cpu(layout, compiled):
    generator = torch.Generator().manual_seed(0)
    x, grad = (
        torch.randn(12, 80, 3, 7, 9, generator=generator, dtype=torch.float64)
        .mul_(3)
        .add_(2)
        .contiguous(memory_format=layout)
        for _ in range(2)
    )
    norm = GroupedBatchNorm3d(80, dtype=torch.float64)
    norm.group_size = 3
    other = deepcopy(norm).cuda()
    expected = _train(norm, x, grad)
    network = torch.compile(other, fullgraph=True, dynamic=False) if compiled else other
    for found, wanted in zip(_train(network, x.cuda(), grad.cuda()), expected, strict=True):
        torch.testing.assert_close(found.cpu(), wanted, atol=1e-9, rtol=1e-9)
    for name, value in norm.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name].cpu(), value)
