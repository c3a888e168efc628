"""Three processes that resume train on as if they had not been interrupted, in a plain DDP loop."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from multigrid import MultigridError, fix_gradient_layout
from tests.conftest import assert_same_bits

PROCESSES = 3
ITERATIONS = 4
INTERRUPTED = 2


class Net(nn.Module):
    """Linear layers, one of which is frozen, and a parameter that is registered out of order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Linear(40, 40) for _ in range(4)))
        self.layers[1].requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(40))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers((x * self.scale).sin())


def wrapped(net: nn.Module, **options: Any) -> DistributedDataParallel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of `broadcast_buffers`
        return DistributedDataParallel(net, broadcast_buffers=False, **options)


def train(rank: int, start: int, state: dict[str, Any] | None, fixed: bool, **options: Any) -> Any:
    """Train to the last iteration. Return the states after each iteration, by iteration."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    if state is not None:
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
    network = wrapped(net, **options)
    if fixed:
        before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        fix_gradient_layout(network)
        assert network.module is net
        assert all(parameter.grad is None for parameter in net.parameters())
        assert_same_bits(net.state_dict(), before)
    states = {}
    for iteration in range(start, ITERATIONS):
        generator = torch.Generator().manual_seed(100 * iteration + rank)
        optimizer.zero_grad()
        for part in range(2):
            with network.no_sync() if part == 0 else nullcontext():
                network(torch.randn(8, 40, generator=generator)).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        optimizer.step()
        kept = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
        states[iteration] = torch.utils._pytree.tree_map_only(Tensor, Tensor.clone, kept)
    return states


def resume(rank: int) -> None:
    """Check that the resumed training is equal if the layout is fixed, and only then."""
    dist.init_process_group("gloo")
    for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 1}):
        whole = train(rank, 0, None, True, **options)
        resumed = train(rank, INTERRUPTED, whole[INTERRUPTED - 1], True, **options)
        assert_same_bits(resumed, {i: whole[i] for i in resumed})
    whole = train(rank, 0, None, False)
    resumed = train(rank, INTERRUPTED, whole[INTERRUPTED - 1], False)
    with pytest.raises(AssertionError):  # if they are equal, the function can go
        assert_same_bits(resumed, {i: whole[i] for i in resumed})
    dist.destroy_process_group()


@pytest.mark.slow("starts processes")
def test_three_processes_resume_as_if_uninterrupted(run_ranks):
    run_ranks(PROCESSES, resume)


def give_layouts(rank: int) -> None:
    dist.init_process_group("gloo")
    fix_gradient_layout(Net())  # not in DDP
    fix_gradient_layout(wrapped(Net(), find_unused_parameters=True))
    with pytest.warns(UserWarning, match="Leave static_graph out"):
        fix_gradient_layout(wrapped(Net(), static_graph=True))
    network = wrapped(Net())
    with torch.no_grad():
        network(torch.zeros(1, 40))  # a validation may come first
    fix_gradient_layout(network)
    network = wrapped(Net())
    network(torch.zeros(1, 40)).sum().backward()
    with pytest.raises(MultigridError, match="directly after the model is wrapped"):
        fix_gradient_layout(network)
    dist.destroy_process_group()


def keep_gradients(rank: int) -> None:
    dist.init_process_group("gloo")
    net = Net()
    net(torch.zeros(1, 40)).sum().backward()
    gradients = {name: parameter.grad for name, parameter in net.named_parameters()}
    fix_gradient_layout(wrapped(net))
    assert all(parameter.grad is gradients[name] for name, parameter in net.named_parameters())
    dist.destroy_process_group()


@pytest.mark.slow("starts processes")
def test_a_layout_that_cannot_be_fixed_is_named(run_ranks):
    run_ranks(2, give_layouts)


@pytest.mark.slow("starts processes")
def test_gradients_from_before_are_kept(run_ranks):
    run_ranks(2, keep_gradients)


# --- one process, whose gradients need no exchange


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Scale(nn.Module):
    """One parameter, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.frozen = nn.Parameter(torch.tensor(5.0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.frozen


def has_layout(network) -> bool:
    """Return whether a network has chosen its layout, which it does in the forward after one."""
    network(torch.ones(()))
    return network._has_rebuilt_buckets


def test_the_layout_is_chosen_once_and_nothing_else_changes(alone):
    net = Scale()
    net.scale.grad = kept = torch.tensor(7.0)
    network = wrapped(net)
    assert not has_layout(network)
    fix_gradient_layout(network)
    assert network.module is net
    assert net.scale.grad is kept
    assert (kept.item(), net.scale.item(), net.frozen.grad) == (7.0, 3.0, None)
    assert has_layout(network)
    with pytest.raises(MultigridError, match="directly after the model is wrapped"):
        fix_gradient_layout(network)
    assert network.module is net
    assert net.scale.grad is kept


@pytest.mark.parametrize("grad", [True, False])
def test_the_layout_is_chosen_also_where_no_gradients_are_computed(alone, grad):
    network = wrapped(Scale())
    with torch.set_grad_enabled(grad):
        fix_gradient_layout(network)
    assert has_layout(network)


def test_networks_that_choose_no_layout_are_left_alone(alone):
    fix_gradient_layout(Scale())
    unused = wrapped(Scale(), find_unused_parameters=True)
    fix_gradient_layout(unused)
    assert not has_layout(unused)
    static = wrapped(Scale(), static_graph=True)
    with pytest.warns(UserWarning, match="Leave static_graph out"):
        fix_gradient_layout(static)
    assert not has_layout(static)
