"""Data sets that read clips from lists of videos."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slowfast_patches.datasets.video_clips import VideoClips

__all__ = ["VideoClips"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Import lazily, because the module imports PyAV and OpenCV.
    from slowfast_patches.datasets.video_clips import VideoClips

    return VideoClips
