"""The loader: how many workers, in which order mini-batches come, and what memory they take."""

import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

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
from slowfast_patches.datasets.clips import ClipDataset
from slowfast_patches.datasets.loader import (
    build_dataset,
    training_loader,
)
from slowfast_patches.launch import launch
from slowfast_patches.registry import DATASETS, DatasetFamily
from slowfast_patches.utils.machine import num_workers

BASE = Shape(4, 8, 32)
MIB = 2**20


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
    ("granted", "gpus", "workers"),
    [
        (1, 0, 1),
        (8, 0, 2),
        (8, 1, 7),
        (64, 1, 16),
        (64, 8, 7),
    ],
)
def test_auto_picks_from_the_cores_the_processes_and_the_device(cores, granted, gpus, workers):
    cores(granted)
    assert num_workers("auto", gpus) == workers


def test_torchrun_says_how_many_processes_share_the_cores(cores, monkeypatch):
    cores(32)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (num_workers("auto", 0), num_workers("auto", 4)) == (2, 7)


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

    It pauses at random, reports which worker read a clip, and counts the reads.
    """

    def __init__(self, pause: float) -> None:
        self.pause, self.reads = pause, multiprocessing.Value("i", 0)

    def __getitems__(self, requests: Sequence[ClipRequest]) -> Batch:
        shape, iteration = requests[0].shape, requests[0].iteration
        time.sleep(self.pause * np.random.default_rng(iteration).random() ** 3)
        clips = empty_clips(len(requests), shape.frames, shape.crop)
        clips[:] = iteration + 1
        with self.reads.get_lock():
            self.reads.value += 1
        return Batch(
            clips=clips,
            labels=torch.tensor([request.video for request in requests]),
            flips=torch.tensor([False] * len(requests)),
            iteration=iteration,
            failures=[(str(os.getpid()), "read this")],
        )


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 3])
def test_the_same_workers_read_all_phases_in_order_though_they_answer_out_of_order(
    schedule, workers
):
    cfg = config("DATA_LOADER.NUM_WORKERS", workers)
    start, pids = 5, defaultdict(set)
    sampler = MultigridBatchSampler(schedule, cfg.rng_seed, start=start)
    loader = training_loader(cfg, Marked(pause=0.02), schedule, start, 0, 1)
    count = 0
    for step, wanted, batch in zip(schedule.steps(start), sampler, loader, strict=True):
        shape, count = step.shape, count + 1
        assert batch["iteration"] == step.iteration
        assert batch["clips"].shape == (shape.batch, shape.frames, shape.crop, shape.crop, 3)
        assert bool((batch["clips"] == step.iteration + 1).all())
        assert batch["labels"].tolist() == [request.video for request in wanted]
        pids[step.phase].add(batch["failures"][0][0])
    assert count == schedule.iterations - start > 50
    everyone = set().union(*pids.values())
    assert len(everyone) == max(1, workers)
    assert (str(os.getpid()) in everyone) == (workers == 0)
    assert len(pids) == 6
    assert all(of_phase == everyone for of_phase in pids.values())


@pytest.mark.slow
def test_workers_are_at_most_two_mini_batches_ahead_of_the_training(schedule):
    data = Marked(pause=0)
    batches = iter(training_loader(config("DATA_LOADER.NUM_WORKERS", 2), data, schedule, 0, 0, 1))
    for taken in (1, 2, 3):
        next(batches)
        deadline = time.monotonic() + 20
        while data.reads.value < taken + 2 * 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert data.reads.value == taken + 2 * 2


# Memory, with real videos.


class Watched(ClipDataset):
    """Data set that reports its worker's (pid, bytes of memory) with each mini-batch.

    It overwrites the previous mini-batch, which it has already handed over, with sevens.
    """

    before: torch.Tensor | None = None

    def __getitems__(self, requests):
        batch = super().__getitems__(requests)
        if self.before is not None:
            self.before[:] = 7
        self.before = batch["clips"]
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        memory = pages * os.sysconf("SC_PAGE_SIZE")
        return batch | {"failures": [(str(os.getpid()), str(memory))]}


def data_config(folder: Path, *overrides: object) -> Recipe:
    grid = ("DATA.NUM_FRAMES", 8, "DATA.SAMPLING_RATE", 2, "DATA.TRAIN_CROP_SIZE", 64)
    jitter = ("DATA.TRAIN_JITTER_SCALES", [64, 80], "DATA.TEST_CROP_SIZE", 64)
    paths = ("DATA.PATH_TO_DATA_DIR", str(folder), "MODEL.NUM_CLASSES", 8)
    return config(*grid, *jitter, *paths, *overrides)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_a_workers_memory_is_shared_and_does_not_grow_with_shapes_or_time(demo_data):
    rate = SteppedRate((10.0, 20.0, 22.0), (1, 0.1, 0.01))
    schedule = make_schedule(Shape(4, 8, 64), 24, rate, PAPER)
    assert [phase.base_shape for phase in schedule.phases[:4]] == [
        phase.base_shape for phase in schedule.phases[4:8]
    ]
    cfg = data_config(demo_data, "DATA_LOADER.NUM_WORKERS", 2)
    once, again, before = defaultdict(list), defaultdict(list), dict[str, torch.Tensor]()
    loader = training_loader(cfg, Watched.of_recipe(cfg, "train"), schedule, 0, 0, 1)
    for step, batch in zip(schedule.steps(), loader, strict=True):
        ((pid, memory),) = batch["failures"]
        # Clips are not copied on their way: its worker has written over them since.
        assert pid not in before or bool((before[pid] == 7).all())
        before[pid] = batch["clips"]
        (once if step.phase < 4 else again)[pid].append(int(memory))
    assert len(once) == 2
    for pid in once:
        assert len(again[pid]) > 6
        assert max(again[pid]) < 1.2 * max(once[pid]) + 20 * MIB


@pytest.mark.parametrize(
    ("multi_label", "shape", "form"),
    [(True, (), r"vectors \(N, classes\)"), (False, (8,), r"class indices \(N,\)")],
)
def test_labels_that_do_not_fit_the_task_are_refused(schedule, multi_label, shape, form):
    data = Marked(pause=0)
    data.videos = range(schedule.num_videos)
    get = data.__getitems__
    data.__getitems__ = lambda requests: (
        get(requests) | {"labels": torch.zeros(len(requests), *shape)}
    )
    cfg = config("DATA.MULTI_LABEL", multi_label, "DATA_LOADER.NUM_WORKERS", 0)
    with pytest.raises(ValueError, match=f"Marked is registered .*{form}.* Correct the task or"):
        next(iter(training_loader(cfg, data, schedule, 0, 0, 1)))


def test_a_data_set_without_the_required_interface_is_refused(monkeypatch):
    monkeypatch.setitem(
        DATASETS.entries, "own", DatasetFamily(build=lambda recipe, split: Marked(pause=0))
    )
    with pytest.raises(ValueError, match="Marked, must have `videos`"):
        build_dataset(config("TRAIN.DATASET", "own"), "train")
