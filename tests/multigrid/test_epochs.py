"""Tests of epochs: one `iter()` of the loader is one, and a training resumes inside it."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import chain

import pytest
import torch
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    IterableDataset,
    Subset,
    WeightedRandomSampler,
    default_collate,
)

from multigrid import (
    PAPER,
    MultigridBatchSampler,
    Shape,
    SteppedRate,
    Training,
    convert_batchnorm,
    make_schedule,
)
from multigrid.epochs import divide_epochs
from tests.multigrid.clips import Clips

VIDEOS = 100
CYCLES = replace(PAPER, epoch_factor=1.0)
RATE = SteppedRate((6.0, 8.0), (0.1, 0.01))
SCHEDULE = make_schedule(Shape(4, 4, 8), VIDEOS, RATE, CYCLES, bn_group_size=2)
EPOCHS, LENGTH = divide_epochs(SCHEDULE)

pytestmark = pytest.mark.filterwarnings("ignore")


def new_training(schedule=SCHEDULE) -> Training:
    torch.manual_seed(0)
    layers = [nn.Conv3d(3, 4, 3, padding=1), nn.BatchNorm3d(4), nn.AdaptiveAvgPool3d(1)]
    model = convert_batchnorm(nn.Sequential(*layers, nn.Flatten()))
    return Training(schedule, model, torch.optim.SGD(model.parameters(), lr=0.0), 5)


def train(training, loader) -> list[int]:
    """Train one `iter()` of a loader without steps, and return its iterations."""
    return [training.begin(batch).iteration for batch in loader]


def test_epochs_are_equal_shares_of_the_iterations():
    """The 200 iterations of the baseline, 8 passes over 100 videos, are 8 epochs of 25."""
    baseline = make_schedule(Shape(4, 4, 8), VIDEOS, RATE, None, bn_group_size=2)
    assert divide_epochs(baseline) == (8, 25)
    odd = make_schedule(Shape(32, 4, 8), VIDEOS, RATE, None, bn_group_size=2)
    assert odd.iterations == 25
    assert divide_epochs(odd) == (7, 4)  # of 8 passes: 6 epochs of 4, and one of 1
    large = make_schedule(Shape(200, 4, 8), VIDEOS, RATE, None, bn_group_size=2)
    assert divide_epochs(large) == (4, 1)  # a mini-batch has two passes
    assert divide_epochs(replace(odd, epochs=0.4)) == (1, 25)  # less than half of a pass


def test_one_iter_of_the_loader_is_one_epoch():
    training = new_training()
    loader = training.loader(Clips(VIDEOS))
    seen = []
    for epoch in range(training.epochs):
        assert (training.epoch, len(loader)) == (epoch, LENGTH)
        seen.append(train(training, loader))
    assert [len(epoch) for epoch in seen[:-1]] == [LENGTH] * (EPOCHS - 1)
    assert 0 < len(seen[-1]) <= LENGTH
    assert [*chain(*seen)] == list(range(SCHEDULE.iterations))
    assert (training.epoch, training.is_complete) == (EPOCHS, True)
    with pytest.warns(UserWarning, match="the training is complete"):
        assert train(training, loader) == []


@pytest.mark.parametrize("start", [0, 1, LENGTH - 1, LENGTH, LENGTH + 2, SCHEDULE.iterations - 1])
def test_a_training_resumes_inside_an_epoch_with_the_same_clips(start):
    training = new_training()
    whole = [batch["clips"] for batch in training.batches(training.loader(Clips(VIDEOS)))]
    loader = training.loader(Clips(VIDEOS))
    training.load_state_dict(new_training().state_dict() | {"iteration": start})
    seen = []
    for _ in range(training.epoch, training.epochs):
        for batch in loader:
            seen.append(training.begin(batch).iteration)
            assert torch.equal(batch["clips"], whole[seen[-1]])
        assert (seen[-1] + 1) % LENGTH == 0 or seen[-1] + 1 == SCHEDULE.iterations
    assert seen == list(range(start, SCHEDULE.iterations))


def test_an_epoch_that_was_left_goes_on_at_the_next_iteration():
    training = new_training()
    loader = training.loader(Clips(VIDEOS))
    next(iter(loader))  # a look at a mini-batch trains nothing
    for batch in loader:
        if training.begin(batch).iteration == 1:
            break
    ahead = iter(loader)
    training.begin(next(ahead))
    next(ahead)  # fetched in advance, and not trained
    assert train(training, loader) == list(range(3, LENGTH))


def test_one_pass_over_the_clips_serves_all_epochs_until_an_epoch_is_left(monkeypatch):
    """Each pass starts the worker processes."""
    starts = list[int]()
    batches = MultigridBatchSampler.__iter__

    def note(sampler):
        starts.append(sampler.start)
        return batches(sampler)

    monkeypatch.setattr(MultigridBatchSampler, "__iter__", note)
    training = new_training()
    loader = training.loader(Clips(VIDEOS))
    for _ in range(training.epochs):
        train(training, loader)
    assert starts == [0]
    training.load_state_dict(training.state_dict() | {"iteration": LENGTH + 1})
    training.begin(next(iter(loader)))
    training.iteration = 1
    train(training, loader)
    assert starts == [0, LENGTH + 1, 1]


def test_the_seeds_of_the_workers_differ_between_iterations_and_seeds():
    def seeds(seed: int, iteration: int, **options):
        training = new_training()
        training.seed, training.iteration = seed, iteration
        loader = training.loader(Clips(VIDEOS), **options)
        next(iter(loader))
        return None if loader.generator is None else tuple(loader.generator.get_state().tolist())

    assert seeds(5, 3) == seeds(5, 3)
    for other in (seeds(5, 4), seeds(6, 3), seeds(6, 4)):
        assert other != seeds(5, 3)
    assert seeds(5, 3, generator=None) is None


def test_all_epochs_in_one_loop_may_be_fetched_in_advance():
    training = new_training()
    batches = training.batches(training.loader(Clips(VIDEOS)))
    ahead = [next(batches), next(batches)]
    for batch in batches:
        ahead.append(batch)
        training.begin(ahead.pop(0))
    assert [training.begin(batch).iteration for batch in ahead][-1] + 1 == SCHEDULE.iterations
    with pytest.raises(ValueError, match="of the same training"):
        training.batches(DataLoader([0]))


class Worker(Clips):
    """Data set whose labels are the process that read the clip."""

    def __getitem__(self, request):
        return super().__getitem__(request) | {"label": os.getpid()}


@pytest.mark.slow("starts workers")
@pytest.mark.parametrize("persistent", [False, True])
def test_the_workers_live_through_all_epochs(persistent):
    training = new_training()
    loader = training.loader(Worker(VIDEOS), num_workers=2, persistent_workers=persistent)
    workers = set()
    for _ in range(training.epochs):
        for batch in loader:
            training.begin(batch)
            workers |= set(batch["labels"].tolist())
    assert len(workers) == 2
    assert os.getpid() not in workers


class Broken(Clips):
    """Data set that fails once."""

    is_whole = False

    def __getitem__(self, request):
        if request.iteration == 2 and not self.is_whole:
            self.is_whole = True
            raise InterruptedError
        return super().__getitem__(request)


def test_an_epoch_may_be_tried_again_after_an_error():
    training = new_training()
    loader = training.loader(Broken(VIDEOS))
    with pytest.raises(InterruptedError):
        train(training, loader)
    assert train(training, loader) == list(range(2, LENGTH))


# Data sets and options of the loader.


def test_a_subset_and_a_concatenation_are_read_from_the_data_sets_inside():
    both = ConcatDataset([Subset(Clips(200), range(199, 99, -2)), Clips(50)])
    training = new_training()
    videos = set()
    for batch in training.batches(training.loader(both)):
        videos |= set(batch["clips"][:, 0, 0, 0, 0].tolist())
    assert videos == {*range(101, 200, 2), *range(50)}


class Endless(IterableDataset):
    """Data set without an index."""

    def __iter__(self):
        pytest.fail("it must be refused before it is read")


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (Clips(VIDEOS), {"shuffle": True, "batch_size": 8}, "leave out batch_size, shuffle"),
        (Clips(VIDEOS), {"sampler": WeightedRandomSampler([1.0], 1)}, "leave out sampler"),
        (Clips(VIDEOS), {"in_order": False}, "leave out in_order=False"),
        (Endless(), {}, "Endless is an IterableDataset.*def __getitem__"),
    ],
)
def test_what_would_train_other_clips_is_refused(dataset, options, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        new_training().loader(dataset, **options)


def test_torch_s_default_collate_function_keeps_the_iteration():
    training = new_training()
    assert train(training, training.loader(Clips(VIDEOS), collate_fn=default_collate))[-1] > 0
