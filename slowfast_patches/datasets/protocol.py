"""The interfaces that training and evaluation require of a data set and of its videos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from multigrid import ClipRequest


class ListedVideo(Protocol):
    """Interface of a video in the list of a data set.

    A video with labels also has `label`, or `classes(first, last)`, the set of the labels of these
    frames. A video whose path is not its name has `name`. A video of frames has `record(limits)`.
    A data set with `DataSet.build` may list anything, even numbers.
    """

    @property
    def path(self) -> str:
        """Video file, or folder of the first frame."""
        ...

    @property
    def annotation(self) -> str:
        """Text of all labels, for the digest of a list."""
        ...


@runtime_checkable
class VideoDataset(Protocol):
    """Interface of every data set that `build_dataset` returns.

    The training split is indexed by `ClipRequest`. Other splits are indexed by clip number, and all
    videos have the same number of clips, one video after another. A data set may also have
    `clip_bytes`, the bytes of one evaluation clip, and `index`, its `VideoIndex`.
    """

    videos: Sequence[Any]
    """The listed videos. Reports use what they have of `ListedVideo`."""

    def __len__(self) -> int:
        """Return the number of clips."""
        ...

    def __getitem__(self, request: ClipRequest | int) -> Mapping[str, Any]:
        """Return a clip as `multigrid.collate` expects it."""
        ...


def clips_per_video(dataset: VideoDataset) -> int:
    """Return the number of evaluation clips of each video."""
    return len(dataset) // len(dataset.videos)


def clip_bytes(dataset: VideoDataset, default: int) -> int:
    """Return the bytes of one evaluation clip, or `default` if the data set does not tell."""
    return int(getattr(dataset, "clip_bytes", default))
