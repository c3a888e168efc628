"""Warn about lists that can be read but are probably wrong."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.csv_list import LabelledVideo
from slowfast_patches.datasets.lists.dataset_lists import labels_of, list_path
from slowfast_patches.utils.files import map_files
from slowfast_patches.utils.storage import is_remote
from slowfast_patches.utils.tables import format_list, shorten_list


def list_warnings(recipe: Recipe, split: str, videos: Sequence[Any]) -> list[str]:
    """Return warnings about a list of videos.

    Report videos that are listed more than once, classes without a training video, and lists that
    lack most classes. If the test list is also the validation list, return no warnings, to avoid
    repeating them.
    """
    path = list_path(recipe, split)
    if split == "test" and recipe.train.enable and path == list_path(recipe, "val"):
        return []
    texts = repeated_videos(path, videos)
    labels = set(labels_of(videos))
    classes = recipe.model.num_classes
    missing = sorted(set(range(classes)) - labels)
    if labels and split == "train":
        if missing:
            texts.append(
                f"{path}: {len(missing)} of MODEL.NUM_CLASSES {classes} classes have no training "
                f"video: {shorten_list(missing)}. The first label must be 0. The labels of this "
                f"list are from {min(labels)} to {max(labels)}"
            )
        elif classes == 1 and not recipe.multi_label:
            texts.append(f"{path}: all videos have the same label, so there is nothing to learn")
    elif labels and missing and not recipe.multi_label:
        # A list with fewer videos than classes must lack many classes.
        lacks_most = len(missing) > len(labels) and len(videos) >= classes
        if len(labels) == 1 or lacks_most:
            texts.append(
                f"{path}: the {len(videos)} videos have only {len(labels)} of {classes} labels, so "
                "the accuracy says nothing about the other classes. List videos of all classes"
            )
    return texts


def _real(path: str) -> str:
    """Return the path of a file without symbolic links. Remote paths have none."""
    return path if is_remote(path) else os.path.realpath(path)


def repeated_videos(csv: Path, videos: Sequence[Any]) -> list[str]:
    """Return warnings about the videos that a csv file lists more than once.

    One warning lists the videos with different labels, and one lists the others.
    """
    listed = [video for video in videos if isinstance(video, LabelledVideo)]
    resolved = map_files(_real, list({video.path for video in listed}))
    labels = defaultdict[str, list[int]](list)
    for path, label in listed:
        labels[resolved[path]].append(label)
    again = list[str]()
    contradictory = list[str]()
    for file, given in labels.items():
        if len(set(given)) > 1:
            contradictory.append(f"{file} (labels {format_list(sorted(set(given)))})")
        elif len(given) > 1:
            again.append(f"{file} ({len(given)} times)")
    texts = list[str]()
    if contradictory:
        texts.append(
            f"{csv}: {len(contradictory)} video(s) have contradictory labels: "
            f"{shorten_list(contradictory)}. Remove the lines with wrong labels"
        )
    if again:
        texts.append(
            f"{csv}: {len(again)} video(s) are listed more than once, so they are used more than "
            f"once per epoch: {shorten_list(again)}"
        )
    return texts
