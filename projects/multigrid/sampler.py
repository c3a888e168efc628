"""The batch sampler: which clips, on which grid, in iteration i.

The sampler tags each index with its shape and the dataset obeys, so that one loader with its
workers lives through all shapes of a training.
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
from multigrid.schedule import Schedule, Step
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
    """What the dataset's `__getitem__` is given: a video, the pass over the data, and the shape."""

    video: int
    epoch: int
    shape: Shape
    iteration: int


class Batch(TypedDict):
    """A collated mini-batch of n clips, as `collate` makes it.

    `labels` are classes, (n,) int64, or multi-hot rows, (n, classes) float32. `extents`, (n, 2)
    float32, is how much each clip covers of what the baseline's do, if the data set has it. Where
    clips have any number of boxes, `boxes` are (m, 5) float32: the clip's place in the mini-batch,
    then x1, y1, x2, y2 in pixels of the clip after `flips`; `labels` are the boxes', (m, classes).
    """

    clips: Tensor
    labels: Tensor
    flips: Tensor
    iteration: int
    failures: list[tuple[str, str]]
    extents: NotRequired[Tensor]
    boxes: NotRequired[Tensor]


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, num_videos: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, epoch)).permutation(num_videos)


def stream(seed: int, num_videos: int, start: int, stop: int) -> list[tuple[int, int]]:
    """(video, epoch) of the clips `start` to `stop`, exclusive, of the endless stream of a seed.

    The stream is one random permutation of the videos after another: each epoch visits every video
    once, and mini-batches run on across the epochs' ends.
    """
    return [_clip(seed, num_videos, number) for number in range(start, stop)]


def _clip(seed: int, num_videos: int, number: int) -> tuple[int, int]:
    epoch, place = divmod(number, num_videos)
    return int(_permutation(seed, epoch, num_videos)[place]), epoch


def clip_numbers(step: Step, rank: int, world_size: int) -> list[int]:
    """The numbers in the stream of a rank's clips in one iteration, as its mini-batch has them.

    Rank r takes the r-th of `world_size` equal runs of the global mini-batch, arranged in
    `group_order`. What belongs to a clip and not to a process is keyed by its number.
    """
    size = step.shape.batch // world_size
    first = step.first_clip + rank * size
    return [first + n for n in group_order(size, step.bn_size)]


class MultigridBatchSampler(Sampler[list[ClipRequest]]):
    """Mini-batches of a schedule for one of `world_size` processes, from iteration `start` on.

    Rank r takes the r-th of `world_size` equal runs of each global mini-batch, so that together the
    ranks see what one process would. BN groups are runs of the stream; within a rank the clips come
    in `group_order`, as `GroupedBatchNorm3d` wants them. One pass over it is the whole training.

    Raises:
        ValueError: the processes cannot train the schedule, see `check_processes`; or `start` is
            not in it.
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
        """This rank's clips of one iteration; a pure function of the iteration."""
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
        """What `load_state_dict` takes to go on after so many iterations of the schedule.

        Only the training loop knows the number: `batch["iteration"] + 1`. The sampler, which a
        loader's workers ask ahead of the training, does not.
        """
        return {"iteration": trained_iterations}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Start at the iteration of `state` when next iterated.

        Raises:
            ValueError: the schedule does not have it.
        """
        start = state["iteration"]
        last = self.schedule.iterations
        if not 0 <= start <= last:
            raise ValueError(
                f"cannot start at iteration {start} of a schedule of {last}; was it another "
                "schedule that was trained?"
            )
        self.start = start


def empty_clips(count: int, frames: int, crop: int) -> Tensor:
    """Room for a mini-batch's clips, (count, frames, crop, crop, 3) uint8, to read them into.

    In a worker of a data loader it lies in memory that the worker shares with the training process:
    clips that are read into it are not copied again on their way.
    """
    clips = torch.empty((count, frames, crop, crop, 3), dtype=torch.uint8)
    if get_worker_info() is not None:
        clips.share_memory_()  # type: ignore[no-untyped-call]
    return clips


def collate(samples: Sequence[Mapping[str, Any]] | Batch) -> Batch:
    """Stack the samples of one mini-batch; one that a data set's `__getitems__` has made stays.

    Each sample has `clip` (T, H, W, 3) uint8, `label` (a class, or a multi-hot vector (classes,)
    float32), `flip` (bool), `iteration`, and, where videos had to be replaced, `failures`, a list
    of their (path, reason). All are of one iteration, hence of one shape. They may have `extents`
    (time, space), as a `ClipPlan` does, and `boxes` (k, 4), whose labels (k, classes) then `label`
    has.

    Raises:
        ValueError: the first sample is none of these.
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
    if "extents" in samples[0]:
        batch["extents"] = torch.tensor([sample["extents"] for sample in samples])
    if "boxes" in samples[0]:
        batch["boxes"] = stack_boxes(samples)
    return batch


def stack_labels(samples: Sequence[Mapping[str, Any]]) -> Tensor:
    """The labels of some samples, as a `Batch` has them."""
    labels = [sample["label"] for sample in samples]
    has_boxes = samples and "boxes" in samples[0]
    return torch.as_tensor(np.concatenate(labels) if has_boxes else np.asarray(labels))


def stack_boxes(samples: Sequence[Mapping[str, Any]]) -> Tensor:
    """The boxes of some samples, as a `Batch` has them."""
    places = np.repeat(np.arange(len(samples)), [len(sample["boxes"]) for sample in samples])
    boxes = np.concatenate([sample["boxes"] for sample in samples])
    return torch.as_tensor(np.column_stack([places, boxes]), dtype=torch.float32)


def network_input(
    batch: Batch, mean: Sequence[float] = (0.45,), std: Sequence[float] = (0.225,)
) -> Tensor:
    """The clips of a mini-batch as a network takes them, where they are: (N, 3, T, H, W) float32,
    mirrored by `flips`.

    `mean` and `std`, of all channels or of each, are taken out of pixels in [0, 1]; by default as
    PySlowFast does.
    """
    clips = batch["clips"].permute(0, 4, 1, 2, 3)
    flips = batch["flips"].view(-1, 1, 1, 1, 1)
    away, by = (torch.tensor(n, device=clips.device).view(-1, 1, 1, 1) for n in (mean, std))
    pixels = (clips / 255 - away) / by
    return torch.where(flips, pixels.flip(-1), pixels)
