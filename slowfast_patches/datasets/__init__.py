"""Data sets that read clips from lists of videos."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slowfast_patches.datasets.lists.dataset_lists import load_with_classes
    from slowfast_patches.datasets.video_clips import VideoClips

__all__ = ["VideoClips", "load_with_classes"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Import lazily, because the modules import PyAV and OpenCV.
    from slowfast_patches.datasets.lists.dataset_lists import load_with_classes
    from slowfast_patches.datasets.video_clips import VideoClips

    return {"VideoClips": VideoClips, "load_with_classes": load_with_classes}[name]
