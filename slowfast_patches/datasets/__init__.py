"""Data sets that read clips from lists of videos."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slowfast_patches.datasets.lists.csv_list import LabelledVideo
    from slowfast_patches.datasets.lists.dataset_lists import load_with_classes
    from slowfast_patches.datasets.video_clips import VideoClips

__all__ = ["LabelledVideo", "VideoClips", "load_with_classes"]

_MODULES = {
    "LabelledVideo": "lists.csv_list",
    "VideoClips": "video_clips",
    "load_with_classes": "lists.dataset_lists",
}
"""Module of each public name. They are imported lazily, because they import PyAV and OpenCV."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
