"""What is odd about a list that parses, in words for whoever is about to train on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.csv_list import LabelledVideo
from slowfast_patches.datasets.lists.dataset_lists import class_names, list_path
from slowfast_patches.datasets.lists.frame_list import FrameList
from slowfast_patches.utils.tables import first_few

__all__ = ["list_warnings", "repeated_videos"]


def list_warnings(recipe: Recipe, split: str, videos: Sequence[Any]) -> list[str]:
    """What is odd about the list of a split. Each is said once: nothing of a test list that is
    val's. What frame lists repeat is refused as they are parsed."""
    path, texts = list_path(recipe, split), list[str]()
    as_val = split == "test" and recipe.train.enable and path == list_path(recipe, "val")
    if path.suffix == ".csv" and isinstance(videos[0], LabelledVideo) and not as_val:
        texts += repeated_videos(path, videos)
    if split == "train":
        texts += _untrained_classes(recipe, path, videos)
    return texts


def repeated_videos(csv: Path, videos: Sequence[LabelledVideo]) -> list[str]:
    """A warning of the videos that a csv file names twice or more; none is the rule."""
    counts = Counter(video.path for video in videos)
    again = [f"{path} ({count} times)" for path, count in counts.items() if count > 1]
    if not again:
        return []
    said = "are listed more than once, and an epoch has them as often"
    return [f"{csv}: {len(again)} video(s) {said}: {first_few(again)}"]


def _untrained_classes(recipe: Recipe, path: Path, videos: Sequence[Any]) -> list[str]:
    """A warning of the classes of MODEL.NUM_CLASSES that no training video has; where they have no
    names, there may be fewer."""
    labels = (
        videos.labels
        if isinstance(videos, FrameList)
        else {video.label for video in videos if isinstance(video, LabelledVideo)}
    )
    count = recipe.model.num_classes
    missing = sorted(set(range(count)) - labels)
    if not missing or not labels:
        return []
    try:
        names = class_names(recipe)
    except ValueError:
        names = None  # names that do not fit are refused where they are needed
    named = missing if names is None else [f"{number} ({names[number]})" for number in missing]
    text = f"{path}: {len(missing)} of MODEL.NUM_CLASSES {count} classes have no video to be "
    text += f"trained on: {first_few(named)}"
    if names is None and (last := max(labels)) < count - 1:
        text += f"; the labels end at {last}: if that is all, set MODEL.NUM_CLASSES {last + 1}"
    return [text]
