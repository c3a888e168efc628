"""The interfaces that training and evaluation require of a data set and of its videos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from multigrid import ClipRequest


class ListedVideo(Protocol):
    """Interface of a video in the list of a data set.

    Other members are optional:

    - `label`: The class index of the video.
    - `classes(first, last)`: Returns the set of all labels of the frames `first` to `last`.
    - `name`: The name that identifies the video, if that is not the path.
    - `scanned(limits)`: Returns the `ScannedVideo` of a video that is stored as separate frames.

    The items of a data set that is built by `DataSet.build` need not have this interface. They may
    even be integers.
    """

    @property
    def path(self) -> str:
        """Path of the video file, or of the folder that contains the first frame."""
        ...

    @property
    def annotation(self) -> str:
        """Text that contains all labels of the video. `list_digest` hashes it."""
        ...


@runtime_checkable
class VideoDataset(Protocol):
    """Interface of every data set that `build_dataset` returns.

    The training split is indexed by `ClipRequest`. The other splits are indexed by an integer, the
    clip index. Every video has the same number of evaluation clips, and the clips of one video are
    consecutive.

    A data set may also have two attributes: `clip_bytes`, the size of one evaluation clip in bytes,
    and `index`, the `VideoIndex` of its videos.
    """

    videos: Sequence[Any]
    """The listed videos. They may implement `ListedVideo` in part or not at all."""

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
    """Return the size of one evaluation clip in bytes.

    If the data set has no attribute `clip_bytes`, return `default`.
    """
    return int(getattr(dataset, "clip_bytes", default))
