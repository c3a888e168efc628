"""The interface that training and evaluation require of a torch data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from multigrid import ClipRequest


@runtime_checkable
class VideoDataset(Protocol):
    """Interface of every data set that `build_dataset` returns.

    The training split is indexed by `ClipRequest`. The other splits are indexed by an integer, the
    clip index. Every video has the same number of evaluation clips, and the clips of one video are
    consecutive.
    """

    videos: Sequence[Any]
    """The listed videos, which may have any type. `read_list` names the members that have a use."""

    def __len__(self) -> int:
        """Return the number of clips."""
        ...

    def __getitem__(self, request: ClipRequest | int) -> Mapping[str, Any]:
        """Return a clip as `multigrid.collate` expects it."""
        ...


def clips_per_video(dataset: VideoDataset) -> int:
    """Return the number of evaluation clips of each video."""
    return len(dataset) // len(dataset.videos)
