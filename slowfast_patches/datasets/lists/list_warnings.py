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
from slowfast_patches.utils.tables import first_few, format_list

__all__ = ["list_warnings", "repeated_videos", "untrained_classes"]


def list_warnings(recipe: Recipe, split: str, videos: Sequence[Any]) -> list[str]:
    """What is odd about the list of a split. Each is said once: nothing of a test list that is
    val's. What frame lists and json files repeat is refused as they are parsed."""
    path, texts = list_path(recipe, split), list[str]()
    as_val = split == "test" and recipe.train.enable and path == list_path(recipe, "val")
    if path.suffix == ".csv" and isinstance(videos[0], LabelledVideo) and not as_val:
        texts += repeated_videos(path, videos)
    if split == "train" and (labels := _labels(videos)):
        texts += untrained_classes(path, labels, recipe.model.num_classes, _names(recipe))
    return texts


def _labels(videos: Sequence[Any]) -> set[int]:
    """The labels of a list, as far as they are known."""
    if isinstance(videos, FrameList):
        return videos.labels
    return {video.label for video in videos if isinstance(video, LabelledVideo)}


def _names(recipe: Recipe) -> Sequence[str] | None:
    try:
        return class_names(recipe)
    except ValueError:
        return None  # names that do not fit are refused where they are needed


def repeated_videos(csv: Path, videos: Sequence[LabelledVideo]) -> list[str]:
    """A warning of the videos that a csv file names twice or more with one label, and one of those
    with several; none is the rule."""
    counts = Counter(video.path for video in videos)
    if len(counts) == len(videos):
        return []
    text = csv.read_text(encoding="utf-8-sig").splitlines()
    lines = (number for number, line in enumerate(text, start=1) if line.strip())
    found = dict[str, list[tuple[int, int]]]()
    for line, (path, label) in zip(lines, videos, strict=True):
        if counts[path] > 1:
            found.setdefault(path, []).append((line, label))
    same, differing = list[str](), list[str]()
    for path, listed in found.items():
        if len({label for _, label in listed}) == 1:
            same.append(f"{path} in lines {format_list(line for line, _ in listed)}")
        else:
            labelled = [f"{line} (label {label})" for line, label in listed]
            differing.append(f"{path} in lines {format_list(labelled)}")
    seen = "more than once with one label, and an epoch has them as often"
    doubtful = "with different labels, and trained with all of them"
    return [
        f"{csv}: {len(texts)} video(s) are listed {what}: {first_few(texts)}"
        for texts, what in ((same, seen), (differing, doubtful))
        if texts
    ]


def untrained_classes(
    path: Path, labels: set[int], num_classes: int, names: Sequence[str] | None
) -> list[str]:
    """A warning of the classes of MODEL.NUM_CLASSES that no training video has; none is the rule.

    `names` are those of the classes by number, where they are known; else there may be fewer.
    """
    missing = sorted(set(range(num_classes)) - labels)
    if not missing:
        return []
    named = missing if names is None else [f"{number} ({names[number]})" for number in missing]
    count = f"{len(missing)} of MODEL.NUM_CLASSES {num_classes} classes"
    text = f"{path}: {count} have no video to be trained on: {first_few(named)}"
    if names is None and (last := max(labels)) < num_classes - 1:
        text += f"; the labels end at {last}: if that is all, set MODEL.NUM_CLASSES {last + 1}"
    return [text]
