"""The loader: how many workers, and in which order mini-batches come."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from multigrid import (
    PAPER,
    Batch,
    ClipRequest,
    MultigridBatchSampler,
    Schedule,
    Shape,
    SteppedRate,
    empty_clips,
    make_schedule,
)
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.loader import build_dataset, training_loader
from slowfast_patches.launch import launch
from slowfast_patches.registry import DATASETS, DatasetSpec
from slowfast_patches.utils.machine import num_workers

BASE = Shape(4, 8, 32)


def config(*overrides: object) -> Recipe:
    return load_recipe(None, ["NUM_GPUS", 0, "DATA_LOADER.PIN_MEMORY", False, *overrides])


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return `cores(n)`, which lets this process use n of the 64 cores of the machine."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)

    def grant(count: int) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)

    return grant


# How many workers.


@pytest.mark.parametrize(
    ("granted", "local_world_size", "gpus", "workers"),
    [
        (8, None, 0, 2),
        (8, None, 1, 7),
        (64, None, 8, 7),
        (32, "4", 0, 2),  # torchrun says how many processes share the cores
    ],
)
def test_auto_picks_from_the_cores_the_processes_and_the_device(
    cores, monkeypatch, granted, local_world_size, gpus, workers
):
    cores(granted)
    if local_world_size:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local_world_size)
    assert num_workers("auto", gpus) == workers


def test_training_on_the_cpu_leaves_the_workers_their_cores(cores, monkeypatch):
    cores(8)
    threads: list[int] = []
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    for value in ("auto", 3, 0, 9):
        launch.launch(config("DATA_LOADER.NUM_WORKERS", value), None, lambda cfg, world: None)
    assert threads == [6, 5, 8, 1]


# The order of mini-batches.


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    """Six phases of ten shapes."""
    return make_schedule(BASE, 100, SteppedRate((8.0, 10.0), (0.1, 0.01)), PAPER)


class Marked(Dataset[Batch]):
    """Data set whose clips have the value iteration + 1.

    It pauses at random, and reports which worker read a clip.
    """

    def __getitems__(self, requests: Sequence[ClipRequest]) -> Batch:
        shape, iteration = requests[0].shape, requests[0].iteration
        time.sleep(0.02 * np.random.default_rng(iteration).random() ** 3)
        clips = empty_clips(len(requests), shape.frames, shape.crop)
        clips[:] = iteration + 1
        return Batch(
            clips=clips,
            labels=torch.tensor([request.video for request in requests]),
            flips=torch.tensor([False] * len(requests)),
            iteration=iteration,
            failures=[(str(os.getpid()), "read this")],
        )


@pytest.mark.slow("starts workers")
def test_the_same_workers_read_all_phases_in_order_though_they_answer_out_of_order(schedule):
    cfg = config("DATA_LOADER.NUM_WORKERS", 3)
    start, pids = 5, defaultdict(set)
    sampler = MultigridBatchSampler(schedule, cfg.rng_seed, start=start)
    loader = training_loader(cfg, Marked(), schedule, start, 0, 1)
    for step, wanted, batch in zip(schedule.steps(start), sampler, loader, strict=True):
        shape = step.shape
        assert batch["iteration"] == step.iteration
        assert batch["clips"].shape == (shape.batch, shape.frames, shape.crop, shape.crop, 3)
        assert bool((batch["clips"] == step.iteration + 1).all())
        assert batch["labels"].tolist() == [request.video for request in wanted]
        pids[step.phase].add(batch["failures"][0][0])
    first, *others = pids.values()
    assert len(first) == 3
    assert others == [first] * 5


def test_labels_that_do_not_fit_the_task_are_refused(schedule):
    """Class indices where the task has several labels."""
    data = Marked()
    data.videos = range(schedule.num_videos)
    cfg = config("DATA.MULTI_LABEL", True, "DATA_LOADER.NUM_WORKERS", 0)
    with pytest.raises(ValueError, match=r"Marked is registered .*vectors .* Correct the task or"):
        next(iter(training_loader(cfg, data, schedule, 0, 0, 1)))


def test_a_data_set_without_the_required_interface_is_refused(monkeypatch):
    monkeypatch.setitem(DATASETS.entries, "own", DatasetSpec(build=lambda recipe, split: Marked()))
    with pytest.raises(ValueError, match="Marked, must have `videos`"):
        build_dataset(config("TRAIN.DATASET", "own"), "train")
