"""Which modules recompute their activations, and when."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from slowfast.models.resnet_helper import BottleneckTransform, ResBlock
from torch import Tensor, nn

from slowfast_patches.models import recompute
from slowfast_patches.models.recompute import checkpoint_blocks

X = torch.randn(4, 8, 3, 6, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A residual block behind an identity."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem = nn.Identity()
        self.block = ResBlock(8, 16, 3, 1, BottleneckTransform, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.stem(x))


@pytest.fixture
def checkpointed(monkeypatch) -> list[Tensor]:
    """Return a list to which the input of each checkpointed pass is added."""
    inputs = list[Tensor]()

    def checkpoint(forward: Callable[[Tensor], Tensor], x: Tensor, **how: object) -> Tensor:
        inputs.append(x)
        return forward(x)

    monkeypatch.setattr(recompute, "checkpoint", checkpoint)  # torch's takes seconds to import
    return inputs


def test_a_block_is_checkpointed_once_even_if_it_is_told_to_twice(checkpointed):
    ours = checkpoint_blocks(checkpoint_blocks(Net()))
    assert torch.equal(ours(X), Net()(X))
    assert len(checkpointed) == 1


def test_other_modules_stay_as_they_are():
    ours = checkpoint_blocks(Net())
    changed = [name for name, module in ours.named_modules() if "forward" in vars(module)]
    assert changed == ["block"]


@pytest.mark.parametrize("case", ["evaluation", "no gradients"])
def test_a_block_is_not_checkpointed_where_there_is_no_backward_pass(checkpointed, case):
    plain = Net().train(case == "no gradients")
    ours = checkpoint_blocks(copy.deepcopy(plain))
    with torch.set_grad_enabled(case == "evaluation"):
        assert torch.equal(ours(X), plain(X))
    assert checkpointed == []


@pytest.mark.parametrize(
    "name", ["activation_checkpointing_enable", "gradient_checkpointing_enable"]
)
def test_a_model_with_a_method_of_its_own_uses_it(name):
    model = Net()
    options = []
    object.__setattr__(model, name, options.append)
    assert checkpoint_blocks(model) is model
    assert options == [{"use_reentrant": False}]
    assert "forward" not in vars(model.block)
