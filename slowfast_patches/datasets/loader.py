"""Data loaders: one that lives through a whole training, and short-lived ones for evaluation."""

from __future__ import annotations

import logging
import os
from itertools import chain
from typing import Any

from torch.utils.data import DataLoader, Dataset

from multigrid import ClipRequest, MultigridBatchSampler, Schedule, Step, collate, stream
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.clips import ClipDataset
from slowfast_patches.datasets.key_frames import KeyFrameClips
from slowfast_patches.datasets.lists.dataset_lists import dataset_of, list_path
from slowfast_patches.utils.machine import available_cores
from slowfast_patches.utils.signals import held_back, leave_to_parent

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
"""Mini-batches that each worker may be ahead."""
_MOST_WORKERS = 16
_MOST_BYTES = 1 << 27
"""Of a video's clips that are read together."""
_CORES_OF_A_WORKER = 4

_PRECISE_BN_EPOCH = 1 << 30
"""Epoch number that seeds the clips for precise BN: one that no training reaches."""


def build_dataset(recipe: Recipe, split: str) -> Any:
    """The torch data set of a split: `ClipDataset`, `KeyFrameClips` of one with boxes, or what the
    data set's entry builds."""
    dataset = dataset_of(recipe, split)
    build = dataset.build or (KeyFrameClips if dataset.boxes else ClipDataset)
    return build(recipe, split)


def cores_of_process(recipe: Recipe) -> int:
    """Cores that one of the run's processes on this machine can count on, its workers' included.

    Processes share their cores evenly: as many as torchrun or launch.py says, else NUM_GPUS.
    """
    processes = int(os.environ.get("LOCAL_WORLD_SIZE") or max(1, recipe.num_gpus))
    return max(1, available_cores() // processes)


def num_workers(recipe: Recipe) -> int:
    """Workers that read for each process: DATA_LOADER.NUM_WORKERS, or what "auto" stands for.

    A GPU leaves the process's cores free: all but one read, 16 at most. On the CPU training itself
    needs them: one in four reads. There is always one, which overlaps waiting for the disk.
    """
    if recipe.data_loader.num_workers != "auto":
        return int(recipe.data_loader.num_workers)
    cores = cores_of_process(recipe)
    if recipe.num_gpus > 0:
        return min(max(1, cores - 1), _MOST_WORKERS)
    return max(1, cores // _CORES_OF_A_WORKER)


def loading_advice(recipe: Recipe, dataset: Any) -> str:
    """What to do where training waits for this data set."""
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
    dataset: Dataset[Any],
    schedule: Schedule,
    start: int,
    rank: int,
    world_size: int,
) -> DataLoader[Any]:
    """Mini-batches of this rank from iteration `start` to the end of the schedule, in order.

    At most NUM_WORKERS × 2 of them are ahead of the training, whatever their shape. Each has about
    the baseline's bytes (the paper's Equation 1), so that the memory has a bound too.
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
    recipe: Recipe, dataset: Any, batch_size: int, rank: int, world_size: int
) -> DataLoader[Any]:
    """This rank's share of an evaluation split, in order, every clip exactly once.

    A mini-batch has whole videos, `batch_size` clips at most, or, where a video alone has more, as
    many of its clips as 128 MiB hold.

    Made anew for every evaluation: starting workers takes a small part of its time, and kept ones
    would idle beside those of the training, with their decoders and their copy of the process.
    """
    return _loader(recipe, dataset, _evaluation_batches(dataset, batch_size, rank, world_size))


def evaluation_rounds(dataset: Any, batch_size: int, world_size: int) -> int:
    """The most mini-batches that `evaluation_loader` gives a rank."""
    return len(_evaluation_batches(dataset, batch_size, 0, world_size))


def _evaluation_batches(
    dataset: Any, batch_size: int, rank: int, world_size: int
) -> list[list[int]]:
    """The clips of this rank's videos, those of a video together: they are read in one pass."""
    clips = len(dataset) // len(dataset.videos)
    of_rank = [range(v * clips, (v + 1) * clips) for v in range(len(dataset.videos))]
    of_rank = of_rank[rank::world_size]
    if clips <= batch_size:
        at_once = batch_size // clips
        groups = (of_rank[i : i + at_once] for i in range(0, len(of_rank), at_once))
        return [list(chain.from_iterable(group)) for group in groups]
    most = max(batch_size, _MOST_BYTES // getattr(dataset, "clip_bytes", _MOST_BYTES))
    size = -(-clips // -(-clips // most))
    return [list(video[i : i + size]) for video in of_rank for i in range(0, clips, size)]


def precise_bn_loader(
    recipe: Recipe,
    dataset: Dataset[Any],
    schedule: Schedule,
    step: Step,
    rank: int,
    world_size: int,
) -> DataLoader[Any]:
    """BN.NUM_BATCHES_PRECISE mini-batches of training clips at the baseline grid.

    At most one epoch of clips, of their own stream, so that training never sees the difference.
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
    """A DataLoader whose workers outlive the signals that ask a run to stop."""

    def __iter__(self) -> Any:
        with held_back():  # a worker that has just started must not die of them either
            return super().__iter__()


def _loader(recipe: Recipe, dataset: Dataset[Any], batches: Any) -> DataLoader[Any]:
    workers = min(num_workers(recipe), len(batches))
    return _Loader(
        dataset,
        batch_sampler=batches,
        num_workers=workers,
        prefetch_factor=_PREFETCH if workers else None,
        pin_memory=recipe.data_loader.pin_memory and recipe.num_gpus > 0,
        collate_fn=collate,
        worker_init_fn=leave_to_parent,
    )
