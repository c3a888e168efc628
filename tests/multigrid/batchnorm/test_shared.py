"""Statistics that ranks share, with threads as ranks. test_processes.py has real processes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from multigrid import MultigridError
from multigrid.batchnorm import (
    GroupedBatchNorm3d,
    average_running_stats,
    form_bn_process_groups,
    set_group_size,
    shared,
)
from multigrid.batchnorm.shared import arrange, arrangement, channel_moments


class World:
    """Stand-in for torch.distributed, with two ranks that are threads of this process."""

    def __init__(self) -> None:
        self.group = SimpleNamespace(WORLD=threading.Event())
        self.formed = list[tuple[int, object]]()
        self.reduced_in = list[object]()
        self._rank = threading.local()
        self._barrier = threading.Barrier(2, timeout=20)
        self._given = [torch.empty(0)] * 2

    def run(self, function):
        """Return what a function of the rank returns on each rank."""

        def on(rank):
            self._rank.number = rank
            return function(rank)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(on, range(2)))

    def is_available(self):
        return True

    def is_initialized(self):
        return True

    def get_world_size(self):
        return 2

    def new_subgroups(self, size, timeout=None):
        self.formed.append((size, timeout))
        return f"group of {size}", ["others"]

    def all_reduce(self, tensor, group=None, async_op=False):
        """Add the tensors of both ranks. Asynchronously, the sum is there after `wait`."""
        self._given[self._rank.number] = tensor.clone()
        self.reduced_in.append(group)
        self._barrier.wait()
        total = self._given[0] + self._given[1]
        self._barrier.wait()
        if not async_op:
            tensor.copy_(total)
            return None
        return SimpleNamespace(wait=lambda: tensor.copy_(total))


@pytest.fixture
def world(monkeypatch):
    world = World()
    monkeypatch.setattr(shared, "dist", world)
    return world


@pytest.mark.parametrize(
    ("clips", "k", "world", "expected"),
    [
        (8, None, 4, (8, 1)),
        (8, 8, 1, (8, 1)),
        (8, 4, 3, (4, 1)),
        (6, 4, 2, None),  # a group would be cut
        (2, 8, 4, (2, 4)),
        (1, 4, 8, (1, 4)),
        (2, 8, 8, (2, 4)),
        (2, 8, 6, None),  # four processes do not divide six
        (3, 8, 8, None),
        (0, 8, 8, None),
    ],
)
def test_an_arrangement_has_whole_groups_on_one_or_several_processes(clips, k, world, expected):
    assert arrangement(clips, k, world) == expected


def test_a_group_that_cannot_be_formed_is_refused_with_the_numbers(world):
    assert arrange(4, 8) == (4, 2)
    with pytest.raises(MultigridError, match=r"k = 16 clips from 4 clips per process on 2 proc"):
        arrange(4, 16)


def test_without_processes_a_group_has_clips_of_one_alone():
    assert arrange(8, 4) == (4, 1)
    with pytest.raises(MultigridError, match=r"k = 8 clips from 4 clips per process on 1 proc"):
        arrange(4, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_are_the_mean_and_mean_square_in_double(dtype):
    """Values 1 and 3, and values 10 and 20."""
    x = torch.tensor([[1.0, 10.0], [3.0, 20.0]], dtype=dtype).view(2, 2, 1, 1, 1)
    moments = channel_moments(x)
    assert moments.dtype == torch.float64
    assert moments.tolist() == [[2.0, 15.0], [5.0, 250.0]]


def test_two_ranks_give_the_result_of_one(world):
    """Each rank has 4 clips of a group of 8. Parameters have the gradients of the rank's clips."""
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(8, 3, 2, 3, 3, generator=generator).double() for _ in range(2))
    scale, shift = torch.tensor([0.5, 1.0, 2.0]).double(), torch.tensor([-1.0, 0.0, 3.0]).double()

    def layer(kind):
        norm = kind(3, dtype=torch.float64, eps=0.1)
        with torch.no_grad():
            norm.weight.copy_(scale)
            norm.bias.copy_(shift)
        return norm

    def train(norm, x, grad):
        x = x.clone().requires_grad_()
        output = norm(x)
        output.backward(grad)
        return output.detach(), x.grad, norm.weight.grad, norm.bias.grad, norm

    def on_rank(rank):
        norm = layer(GroupedBatchNorm3d)
        set_group_size(norm, 8)
        form_bn_process_groups(2, timedelta(minutes=7))
        return train(norm, x.chunk(2)[rank], grad.chunk(2)[rank])

    expected = train(layer(nn.BatchNorm3d), x, grad)
    first, second = world.run(on_rank)
    for number in (0, 1):
        found = torch.cat((first[number], second[number]))
        torch.testing.assert_close(found, expected[number], rtol=1e-9, atol=1e-9)
    for number in (2, 3):
        torch.testing.assert_close(first[number] + second[number], expected[number])
    for norm in (first[4], second[4]):
        for name, value in expected[4].named_buffers():
            torch.testing.assert_close(getattr(norm, name), value)
    assert set(world.reduced_in) == {"group of 2"}


def test_shared_statistics_have_no_gradient_but_the_output_has(world):
    def on_rank(rank):
        form_bn_process_groups(2)
        x, weight, bias = torch.rand(2, 3, 1, 2, 2), torch.ones(3), torch.zeros(3)
        found = shared.SharedBatchNorm.apply(x.requires_grad_(), weight, bias, 2, 0.1)
        return [tensor.requires_grad for tensor in found]

    assert world.run(on_rank) == [[True, False, False]] * 2


def test_process_groups_are_formed_once_and_only_where_ranks_share(world):
    form_bn_process_groups(1)
    assert world.formed == []
    with pytest.raises(MultigridError, match=r"form_bn_process_groups\(2\), on every process"):
        shared._process_group(2)
    form_bn_process_groups(2, timedelta(minutes=7))
    form_bn_process_groups(2, timedelta(minutes=8))
    assert world.formed == [(2, timedelta(minutes=7))]
    assert shared._process_group(2) == "group of 2"
    form_bn_process_groups(4)
    assert world.formed[1:] == [(4, None)]


def test_running_statistics_become_their_mean_over_ranks(world):
    def on_rank(rank):
        model = nn.Sequential(nn.BatchNorm3d(2), nn.BatchNorm3d(1, track_running_stats=False))
        model[0].running_mean.copy_(torch.tensor([1.0, 10.0]) * (rank + 1))
        model[0].running_var.fill_(2.0 + 4 * rank)
        average_running_stats(model)
        average_running_stats(nn.Linear(1, 1))
        return model[0].running_mean.tolist(), model[0].running_var.tolist()

    assert world.run(on_rank) == [([1.5, 15.0], [4.0, 4.0])] * 2
    assert world.reduced_in == [None, None], "a model without statistics has nothing to exchange"


def test_running_statistics_of_one_process_stay():
    norm = nn.BatchNorm3d(1)
    norm.running_mean.fill_(3.0)
    average_running_stats(norm)
    assert norm.running_mean.item() == 3.0
