"""The loader: how many workers, and in which order mini-batches come."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import SimpleNamespace

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
    stream,
)
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets import loader
from slowfast_patches.datasets.loader import (
    build_dataset,
    evaluation_bytes,
    evaluation_loader,
    evaluation_rounds,
    precise_bn_loader,
    training_bytes,
    training_loader,
)
from slowfast_patches.launch import launch
from slowfast_patches.registry import DATASETS, DatasetSpec
from slowfast_patches.utils.machine import num_workers
from slowfast_patches.utils.signals import leave_to_parent

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
    batches = training_loader(cfg, Marked(), schedule, start, 0, 1)
    for step, wanted, batch in zip(schedule.steps(start), sampler, batches, strict=True):
        shape = step.shape
        assert batch["iteration"] == step.iteration
        assert batch["clips"].shape == (shape.batch, shape.frames, shape.crop, shape.crop, 3)
        assert bool((batch["clips"] == step.iteration + 1).all())
        assert batch["labels"].tolist() == [request.video for request in wanted]
        pids[step.phase].add(batch["failures"][0][0])
    first, *others = pids.values()
    assert len(first) == 3
    assert others == [first] * 5


class Clips(SimpleNamespace):
    """Data set of so many videos of so many clips."""

    def __len__(self) -> int:
        return len(self.videos) * self.clips

    def __getitem__(self, number: int) -> dict[str, object]:
        clip = np.zeros((1, 2, 2, 3), np.uint8)
        return {"clip": clip, "label": 0, "video": number, "flip": False, "iteration": -1}


def batches_of(recipe: Recipe, data: Clips, size: int, *ranks: int) -> list[list[int]]:
    """Return the clip indices of the mini-batches of a rank, and check their number."""
    batches = list(evaluation_loader(recipe, data, size, *ranks).batch_sampler)
    assert evaluation_rounds(recipe, data, size, ranks[1]) >= len(batches)
    return batches


def test_mini_batches_of_evaluation_have_whole_videos():
    """Two of the five videos of 3 clips fit into 8 clips."""
    data = Clips(videos=range(5), clips=3)
    whole = batches_of(config(), data, 8, 0, 1)
    assert whole == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [12, 13, 14]]
    assert batches_of(config(), data, 3, 0, 1) == [[3 * n, 3 * n + 1, 3 * n + 2] for n in range(5)]
    assert evaluation_rounds(config(), data, 8, 1) == 3
    first, second = (batches_of(config(), data, 6, rank, 2) for rank in (0, 1))
    assert first == [[0, 1, 2, 6, 7, 8], [12, 13, 14]]
    assert second == [[3, 4, 5, 9, 10, 11]]
    assert evaluation_rounds(config(), data, 6, 2) == 2


@pytest.mark.parametrize(
    ("most", "size", "batches"),
    [
        (4, 2, [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9, 10], [11, 12, 13]]),
        (1, 2, [[0, 1], [2, 3], [4, 5], [6], [7, 8], [9, 10], [11, 12], [13]]),
        (9, 2, [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12, 13]]),
        (9, 7, [[0, 1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12, 13]]),
        (1, 14, [list(range(14))]),
    ],
)
def test_clips_of_a_video_are_divided_if_they_exceed_the_batch_and_the_memory(
    monkeypatch, most, size, batches
):
    """Clips of 4 × 8² pixels have 768 bytes. `most` of them fit."""
    recipe = config("DATA.NUM_FRAMES", 4, "DATA.TEST_CROP_SIZE", 8)
    monkeypatch.setattr(loader, "_MAX_BYTES", 768 * most)
    data = Clips(videos=range(2), clips=7)
    assert batches_of(recipe, data, size, 0, 1) == batches
    assert evaluation_rounds(recipe, data, size, 1) == len(batches)
    assert evaluation_bytes(recipe, data, size) == 768 * max(size, min(most, 7))


def test_a_mini_batch_says_which_videos_its_clips_are_from():
    recipe = config("DATA_LOADER.NUM_WORKERS", 0)
    data = Clips(videos=range(3), clips=1)
    batches = list(evaluation_loader(recipe, data, 2, 0, 1))
    assert [batch["videos"].tolist() for batch in batches] == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("workers", "gpus", "pin", "expected"),
    [(0, 0, True, (0, None, False)), (2, 0, True, (2, 2, False)), (9, 1, True, (3, 2, True))],
)
def test_workers_are_at_most_the_mini_batches_and_memory_is_pinned_for_gpus(
    workers, gpus, pin, expected
):
    keys = ("DATA_LOADER.NUM_WORKERS", workers, "DATA_LOADER.PIN_MEMORY", pin, "NUM_GPUS", gpus)
    made = evaluation_loader(config(*keys), Clips(videos=range(3), clips=1), 1, 0, 1)
    assert (made.num_workers, made.prefetch_factor, made.pin_memory) == expected
    assert made.worker_init_fn is leave_to_parent
    unpinned = config("NUM_GPUS", 1, "DATA_LOADER.NUM_WORKERS", 0)
    assert not evaluation_loader(unpinned, Clips(videos=range(3), clips=1), 1, 0, 1).pin_memory


def requests_of(
    schedule: Schedule, recipe: Recipe, *ranks: int, iteration: int = 7
) -> list[list[ClipRequest]]:
    step = schedule.at(iteration)
    data = Clips(videos=range(schedule.num_videos), clips=1)
    return list(precise_bn_loader(recipe, data, schedule, step, *ranks).batch_sampler)


def test_clips_of_precise_bn_are_others_than_those_of_training_and_differ_by_rank(schedule):
    """3 mini-batches of 4 clips of the baseline, or of 2 clips of each of two ranks."""
    recipe = config("BN.NUM_BATCHES_PRECISE", 3)
    alone = requests_of(schedule, recipe, 0, 1)
    assert [len(batch) for batch in alone] == [4, 4, 4]
    assert {request.shape for batch in alone for request in batch} == {BASE}
    assert all(request.epoch >= 2**30 for batch in alone for request in batch)
    assert {request.iteration for batch in alone for request in batch} == {-1}
    together = [requests_of(schedule, recipe, rank, 2) for rank in (0, 1)]
    for whole, first, second in zip(alone, *together, strict=True):
        assert whole == first + second
    another_seed = recipe.replaced({"RNG_SEED": recipe.rng_seed + 9})
    assert requests_of(schedule, another_seed, 0, 1) != alone
    assert requests_of(schedule, recipe, 0, 1, iteration=8) != alone
    videos = [
        request.video
        for batch in requests_of(schedule, recipe, 0, 1, iteration=0)
        for request in batch
    ]
    trained = stream(recipe.rng_seed, schedule.num_videos, 0, len(videos))
    assert videos != [video for video, _ in trained]


@pytest.mark.parametrize(
    ("videos", "wanted", "world", "counts"),
    [(100, 200, 1, [4] * 25), (7, 3, 1, [4]), (3, 3, 1, [4]), (100, 2, 8, [1, 1])],
)
def test_precise_bn_takes_no_more_than_an_epoch_and_at_least_a_clip(videos, wanted, world, counts):
    schedule = make_schedule(BASE, videos, SteppedRate((8.0, 10.0), (0.1, 0.01)), None)
    found = requests_of(schedule, config("BN.NUM_BATCHES_PRECISE", wanted), 0, world)
    assert [len(batch) for batch in found] == counts


def test_memory_of_training_is_that_of_its_largest_and_a_validation_mini_batch(schedule):
    """A pixel has 3 bytes. The baseline is 4 × 8 × 32²."""
    largest = max(s.batch * s.frames * s.crop**2 for s in schedule.shapes)
    assert training_bytes(schedule, 1) == 3 * (largest + 4 * 8 * 32**2)
    assert training_bytes(schedule, 2) == training_bytes(schedule, 1) // 2


@pytest.mark.parametrize("multi", [False, True])
def test_labels_have_the_shape_that_the_task_needs(multi):
    recipe = config("DATA.MULTI_LABEL", multi, "DATA_LOADER.NUM_WORKERS", 0)

    class Labelled(Clips):
        def __getitem__(self, number: int) -> dict[str, object]:
            label = np.zeros(5, np.float32) if self.multi else 0
            return super().__getitem__(number) | {"label": label}

    def first_batch(given: bool) -> Batch:
        data = Labelled(videos=range(2), clips=1, multi=given)
        return next(iter(evaluation_loader(recipe, data, 2, 0, 1)))

    assert len(first_batch(multi)["labels"]) == 2
    form = "vectors" if multi else "class indices"
    with pytest.raises(ValueError, match=f"task='{recipe.task}'.* must be {form}"):
        first_batch(not multi)


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
