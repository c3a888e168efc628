"""Build data sets and data loaders.

One training loader lasts for the whole run. Each evaluation gets a new loader.
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset

from multigrid import ClipRequest, MultigridBatchSampler, Schedule, ScheduleStep, collate, stream
from multigrid.shared_memory import fit_workers
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.clip_dataset import ClipDataset
from slowfast_patches.datasets.lists.dataset_lists import fitting_dataset
from slowfast_patches.datasets.protocol import VideoDataset, clips_per_video
from slowfast_patches.registry import TASKS
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.machine import cores_of_process, local_processes, num_workers
from slowfast_patches.utils.signals import block_signals, leave_to_parent

logger = logging.getLogger(__name__)

_PREFETCH = 2
"""Number of mini-batches that each worker loads in advance."""
_MAX_BYTES = 1 << 27
"""Maximum size in bytes of a mini-batch that contains only part of the clips of one video."""

_PRECISE_BN_EPOCH = 1 << 30
"""Epoch number that seeds the clips for precise BN. No training run has this many epochs."""


def build_dataset(recipe: Recipe, split: str) -> VideoDataset:
    """Build the data set of a split.

    Returns:
        The result of `DatasetSpec.build` if the data set has this function, and otherwise
        a `ClipDataset`.

    Raises:
        ValueError: The data set contradicts the recipe, or does not implement `VideoDataset`.
    """
    dataset = (fitting_dataset(recipe, split).build or ClipDataset.of_recipe)(recipe, split)
    if not isinstance(dataset, VideoDataset):
        raise UserError(
            f"the data set of {split}, {type(dataset).__name__}, must have `videos` (the list of "
            "its videos), `__len__` and `__getitem__`"
        )
    return dataset


def _num_workers(recipe: Recipe) -> int:
    return num_workers(recipe.data_loader.num_workers, recipe.num_gpus)


def limit_workers(recipe: Recipe, batch_bytes: int) -> Recipe:
    """Reduce DATA_LOADER.NUM_WORKERS, with a warning, if /dev/shm has no room for the clips.

    Args:
        recipe: The recipe of the run.
        batch_bytes: Result of `training_bytes` or `evaluation_bytes`.
    """
    wanted = _num_workers(recipe)
    processes = local_processes(recipe.num_gpus)
    workers, text = fit_workers(wanted, batch_bytes, processes=processes, prefetch=_PREFETCH)
    if workers == wanted:
        return recipe
    logger.warning("DATA_LOADER.NUM_WORKERS is reduced from %d to %d. %s.", wanted, workers, text)
    return recipe.replaced({"DATA_LOADER.NUM_WORKERS": workers})


def training_bytes(schedule: Schedule, world_size: int) -> int:
    """Return the bytes of the largest training mini-batch plus a validation mini-batch.

    During a validation, both kinds are in memory: the training workers keep the mini-batches that
    they have loaded in advance.
    """
    largest = max(shape.volume for shape in schedule.shapes)
    return 3 * (largest + schedule.base.volume) // world_size


def evaluation_bytes(recipe: Recipe, dataset: VideoDataset, batch_size: int) -> int:
    """Return the bytes of the largest mini-batch that `evaluation_loader` yields."""
    return _clip_bytes(recipe) * max(batch_size, _most_of_a_video(recipe, dataset))


def _clip_bytes(recipe: Recipe) -> int:
    """Return the size of a test clip in bytes."""
    return 3 * recipe.data.num_frames * recipe.data.test_crop_size**2


def _most_of_a_video(recipe: Recipe, dataset: VideoDataset) -> int:
    """Return how many clips of a video fit into `_MAX_BYTES`, at most all of them."""
    return min(clips_per_video(dataset), _MAX_BYTES // _clip_bytes(recipe))


def training_loader(
    recipe: Recipe,
    dataset: VideoDataset,
    schedule: Schedule,
    start: int,
    rank: int,
    world_size: int,
) -> DataLoader[Any]:
    """Build the loader of this rank's mini-batches from iteration `start` to the last iteration.

    The workers load at most 2 × NUM_WORKERS mini-batches in advance. Mini-batches of all shapes
    have about the same number of bytes (Equation 1 of the paper), so the memory for them is
    bounded.
    """
    logger.info(
        "DATA_LOADER.NUM_WORKERS is %s. Worker processes: %d. CPU cores of this process: %d",
        recipe.data_loader.num_workers,
        _num_workers(recipe),
        cores_of_process(recipe.num_gpus),
    )
    sampler = MultigridBatchSampler(schedule, recipe.rng_seed, rank, world_size, start)
    return _loader(recipe, dataset, sampler)


def evaluation_loader(
    recipe: Recipe, dataset: VideoDataset, batch_size: int, rank: int, world_size: int
) -> DataLoader[Any]:
    """Build the loader of this rank's subset of an evaluation split.

    Every clip of the subset is loaded once, in order. A mini-batch contains all clips of one or
    several videos, and at most `batch_size` clips. If a single video has more than `batch_size`
    clips, its clips are divided over several mini-batches of up to `batch_size` clips or 128 MiB,
    whichever is larger.

    Build a new loader for every evaluation. Starting workers takes little time, whereas idle
    workers would keep their decoders and their copy of the process in memory.
    """
    batches = _evaluation_batches(recipe, dataset, batch_size, rank, world_size)
    return _loader(recipe, dataset, batches)


def evaluation_rounds(
    recipe: Recipe, dataset: VideoDataset, batch_size: int, world_size: int
) -> int:
    """Return the largest number of mini-batches that a rank has in an evaluation."""
    return len(_evaluation_batches(recipe, dataset, batch_size, 0, world_size))


def _evaluation_batches(
    recipe: Recipe, dataset: VideoDataset, batch_size: int, rank: int, world_size: int
) -> list[list[int]]:
    """Group the clips of one rank into mini-batches, and return the clip indices of each.

    The clips of a video stay together, so that they can be read in one pass.
    """
    clips = clips_per_video(dataset)
    of_rank = [range(v * clips, (v + 1) * clips) for v in range(len(dataset.videos))]
    of_rank = of_rank[rank::world_size]
    if clips <= batch_size:
        at_once = batch_size // clips
        groups = (of_rank[i : i + at_once] for i in range(0, len(of_rank), at_once))
        return [list(chain.from_iterable(group)) for group in groups]
    most = max(batch_size, _most_of_a_video(recipe, dataset))
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
    """Build a loader of BN.NUM_BATCHES_PRECISE mini-batches of training clips for precise BN.

    The clips have the shape of the baseline. The loader yields fewer mini-batches if an epoch has
    fewer. The clips come from a separate random stream, so precise BN does not change the clips
    used in training.
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
    """DataLoader whose workers ignore stop signals such as SIGTERM, which the main process handles.

    Attributes:
        task: Name of the recipe's task, such as "single_label".
        multi_label: Whether the task has labels (N, classes).
    """

    task = "single_label"
    multi_label = False

    def __iter__(self) -> Any:
        with block_signals():  # before the workers start, so that they inherit the blocked signals
            batches = super().__iter__()
        return map(self._checked, batches)

    def _checked(self, batch: Any) -> Any:
        """Check that the labels of a mini-batch have the shape that the task needs, and return it.

        Raises:
            ValueError: The labels have the wrong number of dimensions. The data set was probably
                registered with the wrong `task`.
        """
        labels = batch["labels"]
        if len(labels) and (labels.ndim > 1) != self.multi_label:
            form = "vectors (N, classes)" if self.multi_label else "class indices (N,)"
            raise UserError(
                f"{type(self.dataset).__name__} is registered with task={self.task!r}, so the "
                f"labels of N clips must be {form}, but have shape {tuple(labels.shape)}. Correct "
                "the task or the labels."
            )
        return batch


def _collate(samples: Any) -> Any:
    """Collate a list of items, or pass on a mini-batch that `__getitems__` has already collated.

    If the items have `video`, add `videos`, (N,), to the mini-batch. Evaluation needs it.
    """
    batch: Any = collate(samples)
    if isinstance(samples, list) and "video" in samples[0]:
        batch["videos"] = torch.tensor([sample["video"] for sample in samples])
    return batch


def _loader(recipe: Recipe, dataset: VideoDataset, batches: Any) -> DataLoader[Any]:
    workers = min(_num_workers(recipe), len(batches))
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
    loader.multi_label = TASKS[recipe.task].multi_label
    return loader
