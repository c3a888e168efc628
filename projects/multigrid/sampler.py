"""Batch sampler of a schedule: the clips of each iteration and their shape.

The sampler attaches the shape to each index, and the data set reads the clip in that shape. One
data loader and its workers therefore serve all shapes of a training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler, get_worker_info

from multigrid.batchnorm import check_processes, group_order
from multigrid.contract import check_item
from multigrid.schedule import Schedule, ScheduleStep
from multigrid.shapes import Shape

__all__ = [
    "Batch",
    "ClipRequest",
    "MultigridBatchSampler",
    "clip_numbers",
    "collate",
    "empty_clips",
    "network_input",
    "stack_boxes",
    "stack_labels",
    "stream",
]


class ClipRequest(NamedTuple):
    """Index for a data set's `__getitem__`: which video to read, and in which shape.

    `epoch` is the number of the pass over the data, from 0.
    """

    video: int
    epoch: int
    shape: Shape
    iteration: int


class Batch(TypedDict):
    """Mini-batch of n clips, as returned by `collate`.

    - `clips`: (n, T, H, W, 3) uint8.
    - `labels`: classes, (n,) int64, or multi-hot rows, (n, classes) float32. With boxes, they are
      the labels of the boxes, (m, classes).
    - `flips`: (n,) bool, which clips to mirror.
    - `iteration`: the iteration of the schedule.
    - `failures`: (path, reason) of videos that could not be read and were replaced.
    - `coverage`: (n, 2) float32, the share that each clip covers of the baseline's clip, in time
      and in space. Only if the data set provides it.
    - `boxes`: (m, 5) float32, the index of the clip in the mini-batch, then x1, y1, x2, y2 in
      pixels of the clip after `flips`. Only for data sets with boxes.
    """

    clips: Tensor
    labels: Tensor
    flips: Tensor
    iteration: int
    failures: list[tuple[str, str]]
    coverage: NotRequired[Tensor]
    boxes: NotRequired[Tensor]


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, num_videos: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, epoch)).permutation(num_videos)


def stream(seed: int, num_videos: int, start: int, stop: int) -> list[tuple[int, int]]:
    """Return (video, epoch) of the clips `start` to `stop`, exclusive, of the stream of a seed.

    The endless stream consists of one random permutation of the videos per epoch. Mini-batches may
    span the end of an epoch.
    """
    return [_clip(seed, num_videos, number) for number in range(start, stop)]


def _clip(seed: int, num_videos: int, number: int) -> tuple[int, int]:
    epoch, place = divmod(number, num_videos)
    return int(_permutation(seed, epoch, num_videos)[place]), epoch


def clip_numbers(step: ScheduleStep, rank: int, world_size: int) -> list[int]:
    """Return the positions in the stream of a rank's clips, in the order of its mini-batch.

    Rank r takes the r-th of `world_size` equal runs of the global mini-batch, arranged in
    `group_order`. The position identifies a clip whatever the number of processes, so use it to
    seed what belongs to a clip.
    """
    size = step.shape.batch // world_size
    first = step.first_clip + rank * size
    return [first + n for n in group_order(size, step.bn_size)]


class MultigridBatchSampler(Sampler[list[ClipRequest]]):
    """Batch sampler of one process, whose single pass is the whole training.

    Rank r takes the r-th of `world_size` equal runs of each global mini-batch. Together the ranks
    therefore train on the same clips as a single process. BN groups are contiguous runs of the
    stream. Within a rank, clips are in `group_order`, as `GroupedBatchNorm3d` expects.

    Args:
        schedule: the schedule to train.
        seed: seed of the order of clips.
        rank: rank of this process.
        world_size: the number of processes.
        start: the first iteration.

    Raises:
        ValueError: the processes cannot train the schedule (`check_processes`), or `start` is
            outside of it.
    """

    def __init__(
        self,
        schedule: Schedule,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
    ) -> None:
        check_processes(schedule, world_size)
        self.schedule = schedule
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.load_state_dict({"iteration": start})

    def batch(self, iteration: int) -> list[ClipRequest]:
        """Return this rank's clips of an iteration; a pure function of the iteration."""
        step = self.schedule.at(iteration)
        numbers = clip_numbers(step, self.rank, self.world_size)
        videos = self.schedule.num_videos
        clips = [_clip(self.seed, videos, number) for number in numbers]
        return [ClipRequest(video, epoch, step.shape, iteration) for video, epoch in clips]

    def __iter__(self) -> Iterator[list[ClipRequest]]:
        return (self.batch(i) for i in range(self.start, self.schedule.iterations))

    def __len__(self) -> int:
        return self.schedule.iterations - self.start

    def state_dict(self, trained_iterations: int) -> dict[str, int]:
        """Return the state from which to resume after some iterations of the schedule.

        Args:
            trained_iterations: the number of iterations trained, `batch["iteration"] + 1`. Only the
                training loop knows it, because data loaders draw from the sampler in advance.
        """
        return {"iteration": trained_iterations}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Make the next pass start at the iteration of `state`.

        Raises:
            ValueError: the schedule has no such iteration.
        """
        start = state["iteration"]
        last = self.schedule.iterations
        if not 0 <= start <= last:
            raise ValueError(
                f"cannot start at iteration {start} of a schedule of {last}. The state may be of a "
                "training with another schedule"
            )
        self.start = start


def empty_clips(count: int, frames: int, crop: int) -> Tensor:
    """Allocate a tensor (count, frames, crop, crop, 3) uint8 for the clips of a mini-batch.

    In a data-loader worker, the tensor is in shared memory, so that clips are not copied again on
    their way to the training process.
    """
    clips = torch.empty((count, frames, crop, crop, 3), dtype=torch.uint8)
    if get_worker_info() is not None:
        clips.share_memory_()  # type: ignore[no-untyped-call]
    return clips


def collate(samples: Sequence[Mapping[str, Any]] | Batch) -> Batch:
    """Stack samples into a mini-batch.

    Args:
        samples: samples of one iteration, hence of one shape, or a `Batch` that a data set's
            `__getitems__` has made, which is returned unchanged. Each sample is a mapping with

            - `clip`: (T, H, W, 3) uint8.
            - `label`: a class, or a multi-hot vector (classes,) float32.
            - `flip`: bool, whether to mirror the clip.
            - `iteration`: the iteration of the request.
            - `failures`, optional: a list of (path, reason) of replaced videos.
            - `coverage`, optional: (time, space), as in `ClipPlan`.
            - `boxes`, optional: (k, 4). `label` is then (k, classes).

    Raises:
        ValueError: the first sample lacks one of these, or has another type or shape.
    """
    if isinstance(samples, Mapping):
        return samples
    check_item(samples[0])
    iterations = {sample["iteration"] for sample in samples}
    assert len(iterations) == 1, f"a mini-batch of several iterations: {sorted(iterations)}"
    batch = Batch(
        clips=torch.stack([torch.as_tensor(sample["clip"]) for sample in samples]),
        labels=stack_labels(samples),
        flips=torch.as_tensor([bool(sample["flip"]) for sample in samples]),
        iteration=iterations.pop(),
        failures=[failure for sample in samples for failure in sample.get("failures", ())],
    )
    if "coverage" in samples[0]:
        batch["coverage"] = torch.tensor([sample["coverage"] for sample in samples])
    if "boxes" in samples[0]:
        batch["boxes"] = stack_boxes(samples)
    return batch


def stack_labels(samples: Sequence[Mapping[str, Any]]) -> Tensor:
    """Stack the labels of samples as a `Batch` has them."""
    labels = [sample["label"] for sample in samples]
    has_boxes = samples and "boxes" in samples[0]
    return torch.as_tensor(np.concatenate(labels) if has_boxes else np.asarray(labels))


def stack_boxes(samples: Sequence[Mapping[str, Any]]) -> Tensor:
    """Stack the boxes of samples as a `Batch` has them."""
    places = np.repeat(np.arange(len(samples)), [len(sample["boxes"]) for sample in samples])
    boxes = np.concatenate([sample["boxes"] for sample in samples])
    return torch.as_tensor(np.column_stack([places, boxes]), dtype=torch.float32)


def network_input(
    batch: Batch, mean: Sequence[float] = (0.45,), std: Sequence[float] = (0.225,)
) -> Tensor:
    """Convert the clips of a mini-batch to the input of a network, on their device.

    Args:
        batch: the mini-batch. Clips are mirrored according to its `flips`.
        mean: mean of pixels in [0, 1], of all channels or of each. The default is PySlowFast's.
        std: standard deviation of pixels in [0, 1], likewise.

    Returns:
        The normalised clips, (N, 3, T, H, W) float32.
    """
    clips = batch["clips"].permute(0, 4, 1, 2, 3)
    flips = batch["flips"].view(-1, 1, 1, 1, 1)
    away, by = (torch.tensor(n, device=clips.device).view(-1, 1, 1, 1) for n in (mean, std))
    pixels = (clips / 255 - away) / by
    return torch.where(flips, pixels.flip(-1), pixels)
