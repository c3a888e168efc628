"""Torch data set of labelled videos for any training loop. It needs no recipe."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from multigrid import GENTLE, ClipRequest, Sampling, SamplingOptions, Shape
from slowfast_patches.datasets.clip_dataset import TRIES, ClipDataset
from slowfast_patches.datasets.lists.csv_list import LabelledVideo, read_csv
from slowfast_patches.datasets.reading.index import open_index, unlisted
from slowfast_patches.datasets.transforms import Transform, Transforms
from slowfast_patches.utils.errors import UserError, printable

_PAIRS = (
    "videos must be (path, label) pairs. Either all labels are class indices from 0, or all are "
    "float32 vectors"
)


class Pairs(Protocol):
    """Sequence or map-style data set of (path, label) pairs."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Videos = str | os.PathLike[str] | Pairs


class VideoClips(ClipDataset):
    """Clips of video files, prepared files (`multigrid-prepare`) or folders of JPEG files.

        clips = VideoClips("prepared/train.csv", base, sampling=multigrid.GENTLE.sampling)
        schedule = multigrid.make_schedule(base, len(clips), rate, multigrid.GENTLE)
        loader = multigrid.Training(schedule, model, optimizer).loader(clips, num_workers=4)

    This loader requests clips by `ClipRequest`, and gets random clips of the requested shape. For
    validation, index the data set with integers. Item i is the centre clip of video i and has the
    shape of the baseline:

        DataLoader(VideoClips("prepared/val.csv", base, stride=4), 8, collate_fn=multigrid.collate)

    A mini-batch is a `multigrid.Batch` with an additional `videos`, (N,), the index of each clip's
    video in the list.

    Training frameworks expect a clip for each request. An unreadable video is therefore replaced,
    with a warning: by a random video in training, and by the next video of the list in validation.

    The videos are scanned once. The scan result is saved beside the csv file, or in the user's
    cache folder if `videos` is a list of pairs. In a distributed program, rank 0 scans the videos
    for all processes, so every process must create the data set.

    Args:
        videos: The path of a csv file, or a sequence or a data set of (path, label) pairs, such as
            a Subset or a ConcatDataset. The csv file has a line "path label" per video, as written
            by `multigrid-prepare`, and its paths are relative to the folder of the file. A label is
            a class index from 0. In pairs, all labels may instead be multi-hot vectors, (classes,)
            float32.
        base: The shape of the baseline, as in the schedule.
        stride: Distance between consecutive frames of a clip, in frames of a video with
            `target_fps` frames per second.
        short_sides: Minimum and maximum of the short side in pixels to which frames are resized
            before the crop. By default (256, 320), scaled by `base.crop` / 224.
        seed: Seed of the random clips. The order of the videos depends on the seed of the
            `Training`.
        target_fps: Frame rate to which `stride` refers. 0 means the frame rate of each video.
        sampling: How clips are cut from the videos, usually the `sampling` of the schedule's
            cycles. For example, `dataclasses.replace(multigrid.GENTLE.sampling, flip=False)` turns
            horizontal flips off.
        transforms: Functions or modules that change training clips, in this order. Each takes a
            clip (T, S, S, 3) uint8 RGB and a random generator, and returns a clip of this shape.
            They run in the worker processes, after the crop and before the flip.

    Raises:
        ValueError: The list is missing or has an invalid line or pair, none of the videos can be
            read, or `stride`, `target_fps` or `short_sides` is out of range.
    """

    def __init__(
        self,
        videos: Videos,
        base: Shape,
        *,
        stride: int = 8,
        short_sides: tuple[int, int] | None = None,
        seed: int = 0,
        target_fps: float = 30.0,
        sampling: SamplingOptions = GENTLE.sampling,
        transforms: Sequence[Transform] = (),
    ) -> None:
        if short_sides is None:
            short_sides = (round(base.crop * 256 / 224), round(base.crop * 320 / 224))
        low, high = short_sides
        is_whole = isinstance(stride, (int, np.integer)) and stride >= 1
        if not is_whole or not 0 <= target_fps < math.inf or not base.crop <= low <= high:
            raise UserError(
                f"stride is {stride}, target_fps {target_fps} and short_sides ({low}, {high}), but "
                "stride must be a whole number of 1 or more, target_fps 0 or more and finite, and "
                f"short_sides an ascending pair of at least {base.crop} (the crop)"
            )
        file, listed = _listed(videos)
        grid = Sampling(base, stride, (low, high), sampling, target_fps)
        index = open_index(file, [video.path for video in listed])
        if len(index.unreadable) == len(listed):
            first = "{}: {}".format(*index.unreadable[0])
            raise UserError(f"none of the {len(listed)} videos can be read. The first is {first}")
        changes = [Transforms(transforms, seed)] if transforms else []
        super().__init__(listed, index, grid, seed=seed, changes=changes)

    @property
    def num_classes(self) -> int:
        """Largest class index plus one, or the length of the multi-hot vectors."""
        labels = [video.label for video in self.videos]
        return len(labels[0]) if np.ndim(labels[0]) else 1 + max(labels)

    def _read(
        self, requests: Sequence[ClipRequest | int], outs: Sequence[NDArray[np.uint8]]
    ) -> list[dict[str, Any]]:
        items = super()._read(requests, outs)
        for path, reason in (failure for item in items for failure in item["failures"]):
            text = printable(f"{path} is replaced by another video: {reason}")
            warnings.warn(text, stacklevel=2)
        return items

    def _read_evaluation(
        self, index: int, parts: Sequence[tuple[int, NDArray[np.uint8]]]
    ) -> list[dict[str, Any]]:
        self.videos[index]  # raises an IndexError, which ends a loop over the data set
        return [self._read_first(index, part) for part in parts]

    def _read_first(self, index: int, part: tuple[int, NDArray[np.uint8]]) -> dict[str, Any]:
        """Read a clip of the first readable video from `index` on, and return its item."""
        failures = list[tuple[str, str]]()
        while len(failures) < TRIES:
            (item,) = super()._read_evaluation((index + len(failures)) % len(self.videos), [part])
            if not item.pop("unread", False):
                return item | {"failures": failures}
            failures += item["failures"]
        raise self._too_many(failures)


def _listed(videos: Videos) -> tuple[Path, Sequence[LabelledVideo]]:
    """Return the list path that `open_index` needs, and the listed videos.

    For (path, label) pairs, the path is a stand-in in the user's cache folder.
    """
    if isinstance(videos, (str, os.PathLike)):
        file = Path(videos)
        if not file.is_file():
            raise UserError(
                f"{file} does not exist. Give the path of a csv file, or (path, label) pairs"
            )
        return file, read_csv(file)
    try:
        # Read a data set by index, because an iteration over it may never end.
        by_index = hasattr(videos, "__len__")
        pairs = [videos[i] for i in range(len(videos))] if by_index else [*iter(videos)]
        if not pairs:
            raise UserError("videos is empty. Give (path, label) pairs, or the path of a csv file")
        paths, labels = zip(*pairs, strict=True)
        array = np.asarray(labels)
    except (TypeError, ValueError, LookupError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{_PAIRS}: {error}") from error
    is_class = array.ndim == 1 and array.dtype.kind in "iu" and bool((array >= 0).all())
    if not is_class and (array.ndim != 2 or array.dtype != np.float32):
        raise UserError(_PAIRS)
    files = [os.fspath(path) for path in paths]
    return unlisted(files), [*map(LabelledVideo, files, array.tolist() if is_class else array)]
