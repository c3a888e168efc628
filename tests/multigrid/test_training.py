"""Tests of `Training`: what it sets, what it refuses, and resuming inside an epoch."""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Subset

from multigrid import (
    PAPER,
    GroupedBatchNorm3d,
    MultigridLR,
    Patches,
    Schedule,
    Shape,
    SteppedRate,
    Training,
    clip_numbers,
    convert_batchnorm,
    make_schedule,
    stream,
)
from tests.multigrid.clips import Clips

VIDEOS, SEED = 100, 5
CYCLES = replace(PAPER, epoch_factor=1.0)
SCHEDULE = make_schedule(
    Shape(4, 4, 8), VIDEOS, SteppedRate((6.0, 8.0), (0.1, 0.01)), CYCLES, bn_group_size=2
)


def new_training(seed: int = SEED, schedule=SCHEDULE) -> Training:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv3d(3, 4, 3, padding=1), nn.BatchNorm3d(4), nn.AdaptiveAvgPool3d(1), nn.Flatten()
    )
    model = convert_batchnorm(model)
    groups = [{"params": [model[0].weight]}, {"params": [model[0].bias], "lr_scale": 0.5}]
    return Training(schedule, model, torch.optim.SGD(groups, lr=0.0, momentum=0.9), seed)


def clip_of(batch) -> torch.Tensor:
    return batch["clips"].permute(0, 4, 1, 2, 3).float()


def test_a_forward_or_a_step_without_begin_is_refused_at_any_iteration():
    training = new_training()
    model, optimizer = training.model, training.optimizer
    batches = iter(training.loader(Clips(VIDEOS)))
    for iteration in range(3):
        clips = clip_of(next(batches))
        with pytest.raises(ValueError, match=r"Call training.begin\(batch\)"):
            model(clips)
        with pytest.raises(ValueError, match=r"Call training.begin\(batch\)"):
            optimizer.step()
        training.begin(iteration)
        for _ in range(2):  # accumulated gradients
            model(clips).sum().backward()
        optimizer.step()


def test_what_does_not_train_needs_no_begin():
    training = new_training()
    clips = clip_of(next(iter(training.loader(Clips(VIDEOS)))))
    with torch.no_grad():
        training.model(clips)
    training.model.eval()(clips)
    training.model.train()
    copy.deepcopy(training.model)(clips)
    pickle.loads(pickle.dumps(training.model))(clips)


def test_once_the_training_has_ended_model_and_optimizer_are_free():
    training = new_training()
    for batch in training.batches(training.loader(Clips(VIDEOS))):
        training.begin(batch)
        training.optimizer.step()
    training.model(clip_of(batch)).sum().backward()
    training.optimizer.step()
    with pytest.warns(UserWarning, match="the training is complete"):
        assert list(training.batches(training.loader(Clips(VIDEOS)))) == []


def test_a_model_whose_batchnorm_is_not_converted_is_refused():
    model = nn.Sequential(nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with pytest.raises(ValueError, match=r"Call model = multigrid.convert_batchnorm\(model\)"):
        Training(SCHEDULE, model, optimizer).begin(0)
    local = make_schedule(SCHEDULE.base, VIDEOS, SCHEDULE.learning_rate, bn_group_size=None)
    Training(local, model, optimizer).begin(0)


class Indexed(Clips):
    """Data set that is indexed by number, as in torch."""

    def __getitem__(self, number):
        return [0, 1][number % 2]


class Answers(Clips):
    """Data set whose items are passed through `change`."""

    def __init__(self, change) -> None:
        super().__init__(VIDEOS)
        self.change = change

    def __getitem__(self, request):
        return self.change(super().__getitem__(request))


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Indexed(VIDEOS), r"Indexed.__getitem__\(ClipRequest.*must accept a ClipRequest"),
        (Subset(Indexed(VIDEOS), range(VIDEOS)), "Indexed.*must accept a ClipRequest"),
        (Answers(lambda item: (item["clip"], item["label"])), "a tuple"),
        (Answers(lambda item: item | {"clip": item["clip"] / 255}), "float64"),
        (Answers(lambda item: item | {"clip": item["clip"][:, :1]}), r"\(1, 1, 4, 3\).* 1 frames"),
    ],
)
def test_a_data_set_that_breaks_the_contract_is_told_what_to_write(dataset, message):
    workers = int(isinstance(dataset, Indexed))  # an error in a worker is passed on, too
    loader = new_training().loader(dataset, num_workers=workers)
    with pytest.raises(ValueError, match=f"(?s){message}.*def __getitem__\\(self, request\\)"):
        next(iter(loader))


def test_begin_sets_rates_and_bn_groups_of_the_iteration():
    """The first shape has a quarter of the frames and half of the pixels.

    It therefore has 8 times the clips and the rate. The smallest crop of its short cycle has half
    of its pixels, so BN groups have 2 · 2 clips.
    """
    training = new_training()
    norm = next(m for m in training.model.modules() if isinstance(m, GroupedBatchNorm3d))
    for step in SCHEDULE.steps():
        assert training.begin(step.iteration) == step
        assert [group["lr"] for group in training.optimizer.param_groups] == [step.lr, step.lr / 2]
        assert norm.group_size == step.bn_group_size
        if step.iteration == 0:
            assert (step.lr, step.bn_group_size) == (pytest.approx(0.8), 4)


def test_modules_that_follow_the_grid_are_told_coverage_but_at_the_baselines_own_shape():
    class Told(nn.Module):
        def patches(self, frames, crop):
            return Patches(frames, crop, crop)

        def set_coverage(self, coverage):
            self.coverage = coverage

    training = new_training()
    training.model.add_module("told", Told())
    coverage = torch.tensor([[0.5, 1.0]])
    for step in SCHEDULE.steps():
        training.begin({"iteration": step.iteration, "coverage": coverage})
        is_fine = (step.shape.frames, step.shape.crop) == (4, 8)
        assert training.model.told.coverage is (None if is_fine else coverage)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_videos": VIDEOS + 4}, "checksum of the phases"),
        ({"learning_rate": SteppedRate((6.0, 8.0), (0.2, 0.02))}, "checksum of the learning rates"),
        ({"batch_rate_rule": "sqrt"}, "checksum of the learning rates"),
        ({"bn_group_size": 4}, "checksum of the BN group sizes"),
        ({"seed": 6}, "has seed 5, but this training has seed 6"),
    ],
)
def test_a_state_of_another_training_is_refused(change, message):
    state = new_training().state_dict()
    seed = change.pop("seed", SEED)
    given = {"num_videos": VIDEOS, "learning_rate": SCHEDULE.learning_rate, "bn_group_size": 2}
    rate = {"learning_rate": SteppedRate((6.0, 8.0), (0.1, 0.01))}
    other = make_schedule(SCHEDULE.base, cycles=CYCLES, **given | rate | change)
    with pytest.raises(ValueError, match=message):
        new_training(seed, other).load_state_dict(state)


@pytest.mark.parametrize("iteration", [-1, SCHEDULE.iterations + 1, "3", 3.0, None])
def test_a_state_at_no_iteration_of_the_schedule_is_refused(iteration):
    training = new_training()
    state = training.state_dict() | {"iteration": iteration}
    with pytest.raises(ValueError, match=f"is at iteration {iteration}, but the schedule has"):
        training.load_state_dict(state)
    assert training.iteration == 0


def test_a_complete_training_that_is_resumed_leaves_model_and_optimizer_free():
    training = new_training()
    training.load_state_dict(training.state_dict() | {"iteration": SCHEDULE.iterations})
    assert training.is_complete
    training.loader(Clips(VIDEOS))
    training.model(torch.zeros(4, 3, 2, 8, 8)).sum().backward()
    training.optimizer.step()


def test_the_scheduler_has_the_rates_of_the_schedule_and_resumes():
    training = new_training()
    scheduler = MultigridLR(training.optimizer, SCHEDULE)
    for step in SCHEDULE.steps():
        if step.iteration == 5:
            state = scheduler.state_dict()
            assert "schedule" not in state
            scheduler = MultigridLR(training.optimizer, SCHEDULE)
            scheduler.load_state_dict(state)
        assert step.iteration == 5 or scheduler.get_last_lr() == [step.lr, step.lr / 2]
        training.optimizer.step()
        scheduler.step()
    assert scheduler.get_last_lr() == [step.lr, step.lr / 2], "the last rate is kept"


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"iteration": 1}, "but iteration 2 is next"),
        (3, "but iteration 2 is next"),
        ({"clips": 0}, "a mini-batch without the key"),
        ((0, 1), r"a tuple without the key .* training.begin\(training.iteration\)"),
        ({"iteration": torch.tensor([2, 3])}, "without the key"),
    ],
)
def test_a_mini_batch_that_is_not_the_next_is_refused(batch, message):
    training = new_training()
    training.begin(0)
    training.begin(1)
    with pytest.raises(ValueError, match=message):
        training.begin(batch)


def test_begin_needs_a_model_and_an_optimizer():
    whole = new_training()
    for parts in ((), (whole.model,), (None, whole.optimizer), (whole.model, [])):
        with pytest.raises(ValueError, match="has no model or no optimizer"):
            Training(SCHEDULE, *parts).begin(0)


def test_mini_batches_of_another_training_are_refused():
    training = new_training()
    with pytest.raises(ValueError, match=r"loader .* of the same training"):
        training.batches(new_training().loader(Clips(VIDEOS)))
    training.batches(training.loader(Clips(VIDEOS)))


def test_a_model_that_does_not_accept_a_shape_is_refused_in_the_first_iteration():
    class Odd(nn.Module):
        def patches(self, frames, crop):
            raise ValueError("no even number")

        def set_coverage(self, coverage):
            pass

    training = new_training()
    training.model.add_module("odd", Odd())
    with pytest.raises(ValueError, match=r"not accept clips of shape .*: no even number"):
        training.begin(0)


def test_a_parameter_group_that_is_added_keeps_its_ratio_to_the_others():
    """A group without a rate of its own has the schedule's."""
    training = new_training()
    optimizer, norm = training.optimizer, training.model[1]
    step = training.begin(0)
    optimizer.add_param_group({"params": [norm.weight], "lr": step.lr / 10})
    optimizer.add_param_group({"params": [norm.bias]})
    for iteration in (1, 2):
        step = training.begin(iteration)
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == pytest.approx([step.lr, step.lr / 2, step.lr / 10, step.lr])


def test_the_loader_reads_the_clips_of_the_stream():
    batch = next(iter(new_training().loader(Clips(VIDEOS))))
    expected = [stream(SEED, VIDEOS, n, n + 1)[0][0] for n in clip_numbers(SCHEDULE.at(0), 0, 1)]
    assert batch["clips"][:, 0, 0, 0, 0].tolist() == expected
    assert batch["iteration"] == 0


def test_another_model_is_prepared_as_well():
    """A framework may create its model when the training begins."""
    training, other = new_training(), new_training()
    training.begin(0)
    training.model, training.optimizer = other.model, other.optimizer
    step = training.begin(1)
    assert other.model[1].group_size == step.bn_group_size
    assert other.optimizer.param_groups[0]["lr"] == step.lr


def test_an_index_may_be_any_integer():
    training = new_training()
    stacked = [{"iteration": torch.tensor(numbers)} for numbers in ([2, 2], [3])]
    for batch in (np.int64(0), torch.tensor(1), *stacked):
        training.begin(batch)
    assert training.iteration == 4


def test_a_data_set_of_another_length_is_refused():
    with pytest.raises(ValueError, match="100 videos"):
        new_training().loader(Clips(99))


@pytest.mark.parametrize("steps", [0, -1])
def test_no_micro_batches_are_refused(steps):
    with pytest.raises(ValueError, match=f"accumulation_steps is {steps}, but must be 1 or more"):
        Training(SCHEDULE, accumulation_steps=steps)


def test_a_mini_batch_is_divided_only_in_an_iteration():
    with pytest.raises(ValueError, match=r"no iteration has begun\. Call training\.begin\(batch\)"):
        next(new_training().micro_batches({}))


def test_a_mini_batch_in_one_part_may_be_of_any_kind_and_model():
    """Its BN layers need not be converted, and it need not have one row for each clip."""
    model = nn.Sequential(nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4))
    schedule = make_schedule(
        SCHEDULE.base, VIDEOS, SCHEDULE.learning_rate, CYCLES, bn_group_size=None
    )
    training = Training(schedule, model, torch.optim.SGD(model.parameters(), lr=0.0))
    training.begin(0)
    (part,) = training.micro_batches({"clips": "in another place"})
    assert (part.batch, part.weight, part.is_last) == ({"clips": "in another place"}, 1.0, True)
    training.accumulation_steps = 2
    with pytest.raises(ValueError, match="layers that were not converted"):
        next(training.micro_batches({"clips": "in another place"}))


# What a loop on several processes needs.


def test_the_processes_are_compared_once_after_the_first_iteration(monkeypatch):
    copied = list[bool]()

    def differences(model, *, are_copied):
        copied.append(are_copied)
        return ("they differ",)

    monkeypatch.setattr("multigrid.training.differences", differences)
    monkeypatch.setattr("multigrid.training.is_distributed", lambda: True)
    monkeypatch.setattr("multigrid.watch.broadcasts_buffers", lambda: True)
    training = new_training()
    training.begin(0)
    training.model(torch.zeros(64, 3, 1, 4, 4))
    assert copied == []
    with pytest.warns(UserWarning, match="they differ"):
        training.begin(1)
    training.begin(2)
    assert copied == [True]


@pytest.fixture
def second_of_two(monkeypatch):
    """Make this process the second of two. The value is a list of the schedules of BN groups."""
    formed = list[Schedule]()
    monkeypatch.setattr("multigrid.training.form_groups", formed.append)
    monkeypatch.setattr("multigrid.training.is_distributed", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    return formed


def test_the_loader_of_several_processes_has_a_rank_s_clips_and_forms_bn_groups(second_of_two):
    clips = next(iter(new_training().loader(Clips(VIDEOS))))["clips"]
    assert second_of_two == [SCHEDULE]
    step = SCHEDULE.at(0)
    expected = [stream(SEED, VIDEOS, n, n + 1)[0][0] for n in clip_numbers(step, 1, 2)]
    assert clips[:, 0, 0, 0, 0].tolist() == expected


def test_micro_batches_divide_the_clips_of_a_process(second_of_two, monkeypatch):
    training = new_training()
    training.accumulation_steps = 2
    training.model[1].eval()  # without BN groups, a clip is divided from the others
    step = training.begin(0)
    local = step.shape.batch // 2
    parts = list(training.micro_batches({"labels": torch.arange(local)}))
    assert sorted(n for part in parts for n in part.clips) == list(range(local))


# Shared memory of the workers of the loader.

LARGEST = 3 * max(shape.volume for shape in SCHEDULE.shapes)


@pytest.mark.parametrize(
    ("options", "processes", "batches"),
    [
        ({"num_workers": 2}, 1, 5),  # two mini-batches of each worker, and the one in use
        ({"num_workers": 2, "prefetch_factor": 3}, 1, 7),
        ({"num_workers": 1}, 2, 2 * 3),  # of two processes on one machine
        ({}, 1, 0),
    ],
)
def test_workers_that_find_no_shared_memory_are_warned_of(
    options, processes, batches, monkeypatch, request
):
    def warned(free: int) -> bool:
        memory = SimpleNamespace(f_blocks=10**9, f_bavail=free, f_frsize=1)
        monkeypatch.setattr(os, "statvfs", lambda _: memory)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            new_training().loader(Clips(VIDEOS), **options)
        texts = [str(one.message) for one in told if "/dev/shm" in str(one.message)]
        assert all("or reduce num_workers" in text for text in texts)
        return bool(texts)

    if processes > 1:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert not warned(batches * LARGEST)
    assert batches == 0 or warned(batches * LARGEST - 1)
    request.getfixturevalue("second_of_two")
    assert not warned(batches * LARGEST // 2), "each process has half of the mini-batch"
    assert batches == 0 or warned(batches * LARGEST // 2 - 1)


def test_groups_that_were_there_before_keep_their_own_rule():
    """The rates of the first phase are 8 times the baseline's, or √8 times."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters()}]
    groups[1]["batch_rate_rule"] = "sqrt"
    schedule = make_schedule(
        Shape(4, 4, 8), VIDEOS, SCHEDULE.learning_rate, CYCLES, bn_group_size=None
    )
    training = Training(schedule, model, torch.optim.SGD(groups, lr=0.0))
    for iteration in range(3):
        training.begin(iteration)
        rates = [group["lr"] for group in training.optimizer.param_groups]
        assert rates == pytest.approx([0.8, 0.1 * 8**0.5])
