"""Data loaders: one for a whole training, and short-lived ones for evaluation."""

from __future__ import annotations

import logging
import os
from itertools import chain
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset

from multigrid import ClipRequest, MultigridBatchSampler, Schedule, ScheduleStep, collate, stream
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.clips import ClipDataset
from slowfast_patches.datasets.key_frames import KeyFrameClips
from slowfast_patches.datasets.lists.dataset_lists import fitting_dataset, list_path
from slowfast_patches.datasets.protocol import VideoDataset, clip_bytes, clips_per_video
from slowfast_patches.utils.machine import available_cores
from slowfast_patches.utils.signals import block_signals, leave_to_parent

__all__ = [
    "build_dataset",
    "cores_of_process",
    "evaluation_loader",
    "evaluation_rounds",
    "loading_advice",
    "num_workers",
    "precise_bn_loader",
    "training_loader",
]

logger = logging.getLogger(__name__)

_PREFETCH = 2
"""Mini-batches that each worker loads in advance."""
_MAX_WORKERS = 16
"""Workers per process at most, on a GPU."""
_MAX_BYTES = 1 << 27
"""Maximum size of the clips of one video that are read together."""
_CORES_PER_WORKER = 4
"""Cores per worker in training on the CPU."""

_CLIPS: dict[str, type[ClipDataset]] = {"detection": KeyFrameClips}
"""Data sets of tasks on other than whole clips."""

_PRECISE_BN_EPOCH = 1 << 30
"""Epoch number that seeds the clips for precise BN. No training reaches it."""


def build_dataset(recipe: Recipe, split: str) -> VideoDataset:
    """Build the data set of a split.

    This is `ClipDataset`, `KeyFrameClips` for detection, or the result of
    `DataSet.build`.

    Raises:
        ValueError: The data set does not fit the recipe, or does not implement `VideoDataset`.
    """
    entry = fitting_dataset(recipe, split)
    build = entry.build or _CLIPS.get(entry.task, ClipDataset)
    dataset = build(recipe, split)
    if not isinstance(dataset, VideoDataset):
        raise ValueError(
            f"the data set of {split}, {type(dataset).__name__}, needs `videos` (the list of its "
            "videos), `__len__` and `__getitem__`"
        )
    return dataset


def cores_of_process(recipe: Recipe) -> int:
    """Return the cores available to one process of the run and its workers.

    The processes on this machine share its cores evenly. Their number is given by torchrun or
    launch.py, or else by NUM_GPUS.
    """
    processes = int(os.environ.get("LOCAL_WORLD_SIZE") or max(1, recipe.num_gpus))
    return max(1, available_cores() // processes)


def num_workers(recipe: Recipe) -> int:
    """Return the workers per training process: DATA_LOADER.NUM_WORKERS, or its "auto" value.

    Training on a GPU leaves the cores free, so use all cores but one, at most 16. Training on the
    CPU needs the cores, so use one in four. Use at least one worker to overlap computation and disk
    access.
    """
    if recipe.data_loader.num_workers != "auto":
        return int(recipe.data_loader.num_workers)
    cores = cores_of_process(recipe)
    if recipe.num_gpus > 0:
        return min(max(1, cores - 1), _MAX_WORKERS)
    return max(1, cores // _CORES_PER_WORKER)


def loading_advice(recipe: Recipe, dataset: VideoDataset) -> str:
    """Return advice for a run whose training waits for this data set."""
    workers = num_workers(recipe)
    cores = cores_of_process(recipe)
    index = getattr(dataset, "index", None)
    ways = []
    if index is not None and not index.is_prepared:
        path = list_path(recipe, "train")
        source = f"--csv {path}" if path.suffix == ".csv" else f"--ssv2 {path.parent}"
        prepare = f"multigrid-prepare {source} --output DIR"
        ways.append(f"{prepare} writes a data set that reads several times faster (docs/data.md)")
    if workers < max(1, cores - 1):
        ways.append(
            f"raise DATA_LOADER.NUM_WORKERS (now {workers}; there are {cores} cores for this "
            "process)"
        )
    return ", and ".join(ways) or "a faster disk or more cores would help"


def training_loader(
    recipe: Recipe,
    dataset: VideoDataset,
    schedule: Schedule,
    start: int,
    rank: int,
    world_size: int,
) -> DataLoader[Any]:
    """Build the loader of this rank's mini-batches from iteration `start` to the end.

    At most 2 × NUM_WORKERS mini-batches are loaded in advance, whatever their shape. Each has about
    as many bytes as the baseline's (Equation 1 of the paper), so memory use is bounded too.
    """
    logger.info(
        "DATA_LOADER.NUM_WORKERS %s; workers: %d, cores for this process: %d",
        recipe.data_loader.num_workers,
        num_workers(recipe),
        cores_of_process(recipe),
    )
    sampler = MultigridBatchSampler(schedule, recipe.rng_seed, rank, world_size, start)
    return _loader(recipe, dataset, sampler)


def evaluation_loader(
    recipe: Recipe, dataset: VideoDataset, batch_size: int, rank: int, world_size: int
) -> DataLoader[Any]:
    """Build the loader of this rank's share of an evaluation split.

    Each clip occurs once, in order. A mini-batch has the clips of whole videos, at most
    `batch_size` clips. If one video has more clips than that, a mini-batch has part of its clips,
    up to 128 MiB.

    A new loader is built for every evaluation. Starting workers takes little time, whereas idle
    workers would keep their decoders and their copy of the process in memory.
    """
    return _loader(recipe, dataset, _evaluation_batches(dataset, batch_size, rank, world_size))


def evaluation_rounds(dataset: VideoDataset, batch_size: int, world_size: int) -> int:
    """Return the largest number of mini-batches that `evaluation_loader` gives any rank."""
    return len(_evaluation_batches(dataset, batch_size, 0, world_size))


def _evaluation_batches(
    dataset: VideoDataset, batch_size: int, rank: int, world_size: int
) -> list[list[int]]:
    """Group this rank's clips into mini-batches.

    Clips of a video stay together, so that they are read in one pass.
    """
    clips = clips_per_video(dataset)
    of_rank = [range(v * clips, (v + 1) * clips) for v in range(len(dataset.videos))]
    of_rank = of_rank[rank::world_size]
    if clips <= batch_size:
        at_once = batch_size // clips
        groups = (of_rank[i : i + at_once] for i in range(0, len(of_rank), at_once))
        return [list(chain.from_iterable(group)) for group in groups]
    most = max(batch_size, _MAX_BYTES // clip_bytes(dataset, _MAX_BYTES))
    size = -(-clips // -(-clips // most))
    return [list(video[i : i + size]) for video in of_rank for i in range(0, clips, size)]


def precise_bn_loader(
    recipe: Recipe,
    dataset: VideoDataset,
    schedule: Schedule,
    step: ScheduleStep,
    rank: int,
    world_size: int,
) -> DataLoader[Any]:
    """Build a loader of BN.NUM_BATCHES_PRECISE mini-batches of training clips on the baseline grid.

    There is at most one epoch of clips. They have their own random stream, so that training stays
    the same.
    """
    base = schedule.base
    videos = schedule.num_videos
    size = max(1, base.batch // world_size)
    count = max(1, min(recipe.bn.num_batches_precise, videos // (size * world_size)))
    batches = []
    for number in range(count):
        first = (number * world_size + rank) * size
        clips = stream(recipe.rng_seed + 1 + step.iteration, videos, first, first + size)
        requests = [ClipRequest(v, _PRECISE_BN_EPOCH + e, base, -1) for v, e in clips]
        batches.append(requests)
    return _loader(recipe, dataset, batches)


class _Loader(DataLoader[Any]):
    """DataLoader whose workers ignore the signals that ask a run to stop.

    Attributes:
        task: Task of the recipe.
    """

    task = "single_label"

    def __iter__(self) -> Any:
        with block_signals():  # also protects workers that have just started
            batches = super().__iter__()
        return map(self._checked, batches)

    def _checked(self, batch: Any) -> Any:
        """Return a mini-batch whose labels have the right form.

        Raises:
            ValueError: The data set was registered with the wrong `task`.
        """
        labels = batch["labels"]
        dimensions = 1 if self.task == "single_label" else 2
        if len(labels) and labels.ndim != dimensions:
            form = "class numbers (N,)" if dimensions == 1 else "vectors (N, classes)"
            raise ValueError(
                f"{type(self.dataset).__name__} must give {form} as the labels of N clips, not "
                f"{tuple(labels.shape)}, because it is registered with task={self.task!r}. Correct "
                "the task or the labels."
            )
        return batch


def _collate(samples: Any) -> Any:
    """Make a mini-batch from items, or from what `__getitems__` of the data set has returned.

    A mini-batch of items with `video` has `videos`, which evaluation needs.
    """
    batch: Any = collate(samples)
    if isinstance(samples, list) and "video" in samples[0]:
        batch["videos"] = torch.tensor([sample["video"] for sample in samples])
    return batch


def _loader(recipe: Recipe, dataset: VideoDataset, batches: Any) -> DataLoader[Any]:
    workers = min(num_workers(recipe), len(batches))
    loader = _Loader(
        cast(Dataset[Any], dataset),
        batch_sampler=batches,
        num_workers=workers,
        prefetch_factor=_PREFETCH if workers else None,
        pin_memory=recipe.data_loader.pin_memory and recipe.num_gpus > 0,
        collate_fn=_collate,
        worker_init_fn=leave_to_parent,
    )
    loader.task = recipe.task
    return loader
