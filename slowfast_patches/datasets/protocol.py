"""The interface that training and evaluation require of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class VideoDataset(Protocol):
    """Interface of every data set that `build_dataset` returns.

    The training split is indexed by `ClipRequest`. Other splits are indexed by clip number, and all
    videos have the same number of clips, one video after another. A data set may also have
    `clip_bytes`, the bytes of one evaluation clip, and `index`, its `VideoIndex`.
    """

    videos: Sequence[Any]
    """The listed videos. Reports use their `path` and `label`, if they have them."""

    def __len__(self) -> int:
        """Return the number of clips."""
        ...

    def __getitem__(self, request: Any) -> Any:
        """Return a clip as `multigrid.collate` expects it."""
        ...


def clips_per_video(dataset: VideoDataset) -> int:
    """Return the number of evaluation clips of each video."""
    return len(dataset) // len(dataset.videos)


def clip_bytes(dataset: VideoDataset, default: int) -> int:
    """Return the bytes of one evaluation clip, or `default` if the data set does not tell."""
    return int(getattr(dataset, "clip_bytes", default))
