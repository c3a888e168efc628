"""Tests that a training in micro-batches is the training in whole mini-batches."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from multigrid import (
    PAPER,
    Patches,
    Schedule,
    Shape,
    SteppedRate,
    Training,
    convert_batchnorm,
    make_schedule,
    network_input,
)
from multigrid.micro_batches import divide
from tests.multigrid.clips import Clips

VIDEOS = 60
RATE = SteppedRate((6.0, 8.0), (0.1, 0.01))


def schedule(batch: int, bn_group_size: int | None = 2) -> Schedule:
    """Return a schedule with all shapes of both cycles. The baseline has `batch` clips."""
    cycles = replace(PAPER, epoch_factor=1.0)
    return make_schedule(Shape(batch, 4, 8), VIDEOS, RATE, cycles, bn_group_size=bn_group_size)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv3d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm3d(4)
        self.cumulative = nn.BatchNorm3d(4, momentum=None)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x.to(self.head.weight.dtype))).relu()
        x = self.cumulative(x)
        return self.head(x.mean((2, 3, 4)))


def train(schedule: Schedule, parts: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return the gradients of each iteration, and the state at the end, in double precision."""
    model = convert_batchnorm(Net()).double()
    network = model
    if dist.is_initialized():
        network = DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    training = Training(schedule, model, optimizer, accumulation_steps=parts)
    gradients = list[Tensor]()
    for batch in training.batches(training.loader(Clips(VIDEOS))):
        training.begin(batch)
        optimizer.zero_grad()
        for micro in training.micro_batches(batch):
            is_alone = micro.is_last or not isinstance(network, DistributedDataParallel)
            with nullcontext() if is_alone else network.no_sync():
                scores = network(network_input(micro.batch))
                loss = nn.functional.cross_entropy(scores, micro.batch["labels"])
                (micro.weight * loss).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        optimizer.step()
    return gradients, model.state_dict()


def assert_close(found: object, expected: object) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("batch", [6, 10])
def test_a_training_in_micro_batches_is_the_training_in_one(batch):
    """Mini-batches of the fine shape have 3 or 5 groups, which micro-batches share unequally."""
    whole = train(schedule(batch), 1)
    assert int(whole[1]["norm.num_batches_tracked"]) == schedule(batch).iterations
    for parts in (2, 3):
        assert_close(train(schedule(batch), parts), whole)


def save_rank(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.save(train(schedule(12), 3), folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow("starts processes")
def test_two_processes_in_micro_batches_train_what_one_does_in_whole(tmp_path, run_ranks):
    run_ranks(2, save_rank, tmp_path)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    gradients, state = train(schedule(12), 1)
    for found, _ in ranks:
        assert_close(found, gradients)
    for name, value in state.items():
        assert_close(sum(found[name].double() for _, found in ranks) / 2, value.double())


class Follows(nn.Module):
    """Network without BN that notes the coverage of the clips of each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def patches(self, frames: int, crop: int) -> Patches:
        return Patches(frames, crop, crop)

    def set_coverage(self, coverage: Tensor | None) -> None:
        self.coverage = coverage


def test_a_micro_batch_has_its_clips_of_all_tensors():
    """Micro-batch 2 of 3 has clips 2, 5, 8, ..."""
    model = Follows()
    optimizer = torch.optim.SGD(model.parameters())
    training = Training(schedule(4, bn_group_size=None), model, optimizer, accumulation_steps=3)
    assert training.begin(0).shape.batch == 64
    batch = {
        "pathways": [torch.arange(64), {"fast": torch.arange(64) * 2}],
        "coverage": torch.arange(128).view(64, 2),
        "failures": [("a.mp4", "is empty")],
    }
    parts = list(training.micro_batches(batch))
    assert [micro.is_last for micro in parts] == [False, False, True]
    assert [micro.weight for micro in parts] == [22 / 64, 21 / 64, 21 / 64]
    last = parts[2].batch
    assert last["pathways"][0].tolist() == list(range(2, 64, 3))
    assert last["pathways"][1]["fast"].tolist() == list(range(4, 128, 6))
    assert last["failures"] == [("a.mp4", "is empty")]
    assert torch.equal(model.coverage, batch["coverage"][2::3])


@pytest.mark.parametrize(
    ("parts", "rows", "message"),
    [
        (4, 96, "3 BN groups .* most 3"),
        (2, 5, "no tensor of 96 rows"),
    ],
)
def test_what_cannot_be_divided_is_refused(parts: int, rows: int, message: str):
    model = convert_batchnorm(Net())
    training = Training(
        schedule(6),
        model,
        torch.optim.SGD(model.parameters()),
        accumulation_steps=parts,
    )
    training.begin(0)
    with pytest.raises(ValueError, match=message):
        next(training.micro_batches({"labels": torch.zeros(rows)}))


def test_a_mini_batch_that_was_not_divided_is_not_stepped_on():
    model = convert_batchnorm(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    training = Training(schedule(6), model, optimizer, accumulation_steps=2)
    batch = next(iter(training.loader(Clips(VIDEOS))))
    training.begin(batch)
    next(training.micro_batches(batch))
    with pytest.raises(ValueError, match=r"Iterate over training.micro_batches\(batch\)"):
        optimizer.step()


@pytest.mark.parametrize(
    ("clips", "size", "parts", "expected"),
    [
        # Clips i and i + 6 are a group, and so on.
        (12, 2, 3, [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]),
        # Three groups of 4: the first micro-batch has groups 0 and 2.
        (12, 4, 2, [[0, 2, 3, 5, 6, 8, 9, 11], [1, 4, 7, 10]]),
        (5, None, 2, [[0, 2, 4], [1, 3]]),
        # A group has more clips than this process. So all of them stay together.
        (4, 8, 1, [[0, 1, 2, 3]]),
    ],
)
def test_micro_batches_have_whole_groups(clips, size, parts, expected):
    batch = {"x": torch.arange(clips)}
    found = list(divide(batch, clips, size, parts, []))
    assert [micro.clips for micro in found] == expected
    assert [micro.batch["x"].tolist() for micro in found] == expected
    assert [micro.weight for micro in found] == [len(part) / clips for part in expected]
    assert [micro.is_last for micro in found] == [False] * (parts - 1) + [True]


def test_running_statistics_become_the_mean_over_the_micro_batches_and_counts_stay_whole():
    """Micro-batches of 8 and 4 clips add 3 and 6 to a mean of 1: 1 + (8 · 3 + 4 · 6) / 12 = 5."""
    norm, frozen = nn.BatchNorm3d(1), nn.BatchNorm3d(1).eval()
    norm.running_mean.fill_(1.0)
    frozen.running_mean.fill_(0.1)
    model = nn.Sequential(nn.Sequential(norm), frozen)
    frozen.eval()
    for micro in divide({"x": torch.arange(12)}, 12, 4, 2, model.modules()):
        assert norm.running_mean.item() == 1.0, "each starts from before the mini-batch"
        norm.running_mean.add_(3.0 if len(micro.clips) == 8 else 6.0)
        norm.num_batches_tracked.add_(1)
    assert norm.running_mean.item() == pytest.approx(5.0)
    assert norm.num_batches_tracked.item() == 1
    assert frozen.running_mean.item() == torch.tensor(0.1).item()


def test_buffers_that_no_forward_changes_keep_their_exact_values():
    """A constant may be infinite, as in a mask. Running means of equal halves are their mean."""
    model = nn.Module()
    model.register_buffer("constant", torch.tensor([0.229, -torch.inf]))
    model.register_buffer("running", torch.tensor([1.0]))
    for _ in range(50):
        for number, _ in enumerate(divide({"x": torch.zeros(6, 1)}, 6, 2, 3, model.modules())):
            model.running.add_(3 * number)  # 0, 3 and 6
    assert model.constant.tolist() == torch.tensor([0.229, -torch.inf]).tolist()
    assert model.running.item() == pytest.approx(1 + 50 * 3)
