"""Batch sampler that selects the clips of each iteration of a schedule, and their shape.

Each index of the sampler contains the shape of the clip to read. One data loader and its workers
can therefore be used for all shapes of a training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn, NotRequired, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler, get_worker_info

from multigrid.batchnorm import check_processes, group_order
from multigrid.errors import MultigridError
from multigrid.sampling_weights import WeightedStream
from multigrid.schedule import Schedule, ScheduleStep
from multigrid.shapes import ClipRequest


class Batch(TypedDict):
    """Mini-batch of n clips, as returned by `collate`.

    - `clips`: (n, T, H, W, 3) uint8, before mirroring.
    - `labels`: class indices (n,) int64, or arrays such as multi-hot vectors (n, classes) float32.
    - `flips`: (n,) bool, True for each clip that `network_input` mirrors.
    - `iteration`: index of the iteration in the schedule.
    - `failures`: (path, reason) of each video that could not be read. Another video replaces it.
    - `coverage`: (n, 2) float32, the fraction of the baseline clip that each clip shows, in time
      and in space. Present only if the data set provides it.
    """

    clips: Tensor
    labels: Tensor
    flips: Tensor
    iteration: int
    failures: list[tuple[str, str]]
    coverage: NotRequired[Tensor]


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, num_videos: int) -> NDArray[np.int64]:
    # NumPy ignores zeros at the end of a seed, so the clip of video 0 has the same generator.
    # Another seed here would change the order of the videos in all trainings.
    return np.random.default_rng((seed, epoch)).permutation(num_videos)


def stream(seed: int, num_videos: int, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the (video, epoch) pairs of the clips from `start` to `stop`, exclusive.

    The order of clips is an endless stream: one random permutation of the videos for each epoch.
    Mini-batches are consecutive slices of the stream, and may contain the end of an epoch.

    Args:
        seed: Seed of the permutations.
        num_videos: Number of videos.
        start: Position of the first clip in the stream.
        stop: Position after the last clip.
    """
    return [clip_at(seed, num_videos, number) for number in range(start, stop)]


def clip_at(seed: int, num_videos: int, number: int) -> tuple[int, int]:
    """Return the (video, epoch) pair at an index of the stream."""
    epoch, place = divmod(number, num_videos)
    return int(_permutation(seed, epoch, num_videos)[place]), epoch


def clip_numbers(step: ScheduleStep, rank: int, world_size: int) -> list[int]:
    """Return the indices in the clip stream (see `stream`) of a rank's clips in one iteration.

    The global mini-batch is divided into `world_size` consecutive slices of equal length, one per
    rank. Within its slice, a rank reads clips in `group_order`. The index of a clip does not
    depend on the number of processes, so use the index as the random seed of the clip.
    """
    size = step.shape.batch // world_size
    first = step.first_clip + rank * size
    return [first + n for n in group_order(size, step.bn_group_size)]


class MultigridBatchSampler(Sampler[list[ClipRequest]]):
    """Batch sampler that yields the clips of this rank for all iterations of a training.

    Each global mini-batch is divided into `world_size` consecutive slices, one per rank. All ranks
    together therefore train on the same clips as a single process. BN groups consist of consecutive
    clips. Within a rank, clips are in `group_order`, as `GroupedBatchNorm3d` expects.

    Args:
        schedule: The schedule to train.
        seed: Seed of the order of clips.
        rank: Rank of this process.
        world_size: Number of processes.
        start: The first iteration.
        weights: Sampling weight of each video (see `WeightedStream`). None means that each video
            appears once in each epoch.

    Raises:
        ValueError: The mini-batches cannot be divided over the processes (`check_processes`), or
            the schedule has no iteration `start`.
    """

    def __init__(
        self,
        schedule: Schedule,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
        weights: Sequence[float] | None = None,
    ) -> None:
        check_processes(schedule, world_size)
        if start not in range(schedule.iterations + 1):
            raise MultigridError(
                f"start is {start}, but the schedule has {schedule.iterations} iterations"
            )
        self.schedule = schedule
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.start = start
        self._stream = None
        if weights is not None:
            self._stream = WeightedStream(seed, weights)
            if len(weights) != schedule.num_videos:
                raise MultigridError(
                    f"there are {len(weights)} weights, but the schedule was made for "
                    f"{schedule.num_videos} videos"
                )

    def _clip_at(self, number: int) -> tuple[int, int]:
        """Return the (video, epoch) pair at an index of the stream."""
        if self._stream is not None:
            return self._stream.at(number)
        return clip_at(self.seed, self.schedule.num_videos, number)

    def batch(self, iteration: int) -> list[ClipRequest]:
        """Return the requests for this rank's clips of an iteration."""
        step = self.schedule.at(iteration)
        return [
            ClipRequest(*self._clip_at(n), step.shape, iteration)
            for n in clip_numbers(step, self.rank, self.world_size)
        ]

    def __iter__(self) -> Iterator[list[ClipRequest]]:
        return (self.batch(i) for i in range(self.start, self.schedule.iterations))

    def __len__(self) -> int:
        return self.schedule.iterations - self.start

    @property
    def batch_size(self) -> NoReturn:
        """Raise ValueError, because mini-batches have no fixed size.

        Frameworks read this attribute to divide mini-batches over the processes, but these
        mini-batches are already divided.
        """
        raise MultigridError(
            "the mini-batches of MultigridBatchSampler have no fixed size, and they are already "
            "divided over the processes. Do not pass the loader to accelerator.prepare. In "
            "Lightning, use Trainer(use_distributed_sampler=False)"
        )


def empty_clips(count: int, frames: int, crop: int) -> Tensor:
    """Allocate a uint8 tensor (count, frames, crop, crop, 3) for the clips of a mini-batch.

    In a data-loader worker, the tensor is allocated in shared memory, so that the clips need not be
    copied to send them to the training process.
    """
    return _shared(torch.empty((count, frames, crop, crop, 3), dtype=torch.uint8))


def _shared(clips: Tensor) -> Tensor:
    """Move a tensor to shared memory in a data-loader worker.

    Otherwise, the worker would do this later in a thread. If /dev/shm is full, the error would be
    lost in the thread, and the training would wait forever.
    """
    if get_worker_info() is not None:
        clips.share_memory_()  # type: ignore[no-untyped-call]
    return clips


def collate(samples: Sequence[Mapping[str, Any]] | Batch) -> Batch:
    """Stack samples into a mini-batch.

    Args:
        samples: Samples of one iteration, which have the same shape. Alternatively, a `Batch` from
            a data set's `__getitems__`, which is returned unchanged. Each sample is a mapping:

            - `clip`: (T, H, W, 3) uint8.
            - `label`: class index, or multi-hot vector (classes,) float32.
            - `flip`: bool, whether to mirror the clip.
            - `iteration`: `iteration` of the `ClipRequest`.
            - `failures`, optional: list of (path, reason) of videos that could not be read.
            - `coverage`, optional: (time, space), as in `ClipPlan`.
    """
    if isinstance(samples, Mapping):
        return samples
    iterations = {sample["iteration"] for sample in samples}
    assert len(iterations) == 1, f"samples are of several iterations: {sorted(iterations)}"
    batch = Batch(
        clips=_shared(torch.stack([torch.as_tensor(sample["clip"]) for sample in samples])),
        labels=stack_labels(samples),
        flips=torch.as_tensor([bool(sample["flip"]) for sample in samples]),
        iteration=iterations.pop(),
        failures=[failure for sample in samples for failure in sample.get("failures", ())],
    )
    if "coverage" in samples[0]:
        batch["coverage"] = torch.tensor([sample["coverage"] for sample in samples])
    return batch


def stack_labels(samples: Sequence[Mapping[str, Any]]) -> Tensor:
    """Stack the labels of samples into the `labels` of a `Batch`."""
    stacked = torch.as_tensor(np.asarray([sample["label"] for sample in samples]))
    is_index = stacked.ndim == 1 and not stacked.is_floating_point()
    return stacked.long() if is_index else stacked.float()


def network_input(
    batch: Batch, mean: Sequence[float] = (0.45,), std: Sequence[float] = (0.225,)
) -> Tensor:
    """Normalise and mirror the clips of a mini-batch, on the device of `batch["clips"]`.

    Args:
        batch: Mini-batch from `collate`. Clips are mirrored where `batch["flips"]` is True.
        mean: Mean of pixel values in [0, 1]: one value for all channels, or one value per channel.
            The default is PySlowFast's.
        std: Standard deviation of pixel values in [0, 1]: one value, or one per channel.

    Returns:
        Normalised clips (N, 3, T, H, W) float32.
    """
    if not {"clips", "flips"} <= set(batch):
        raise MultigridError(
            f"network_input needs a mini-batch from multigrid.collate, with the keys clips and "
            f"flips, but got {sorted(map(str, batch))}. Pass no collate_fn to the loader, or "
            "normalise the clips in your loop"
        )
    # Make it contiguous, so that `GroupedBatchNorm3d` need not copy it.
    clips = batch["clips"].permute(0, 4, 1, 2, 3).contiguous()
    flips = batch["flips"].to(clips.device).view(-1, 1, 1, 1, 1)
    away, by = (torch.tensor(n, device=clips.device).view(-1, 1, 1, 1) for n in (mean, std))
    pixels = (clips / 255 - away) / by
    return torch.where(flips, pixels.flip(-1), pixels)
