"""Warn about lists that can be read but are probably wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.csv_list import LabelledVideo
from slowfast_patches.datasets.lists.dataset_lists import labels_of, list_path
from slowfast_patches.datasets.lists.overlaps import resolve_paths
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
    labels = set(labels_of(videos))
    texts = repeated_videos(path, videos)
    if labels and split == "train":
        texts += _training_labels(path, labels, recipe)
    elif labels and not recipe.multi_label:
        texts += _evaluation_labels(path, labels, len(videos), recipe.model.num_classes)
    return texts


def _training_labels(path: Path, labels: set[int], recipe: Recipe) -> list[str]:
    """Return one warning if classes have no training video, or if there is only one class."""
    classes = recipe.model.num_classes
    missing = sorted(set(range(classes)) - labels)
    if len(labels) == 1 and not recipe.multi_label:
        return [f"{path}: all videos have the label {min(labels)}, so there is nothing to learn"]
    if not missing:
        return []
    text = (
        f"{path}: {len(missing)} of MODEL.NUM_CLASSES {classes} classes have no training video: "
        f"{shorten_list(missing)}"
    )
    last = max(labels)
    if min(labels) == 1:
        text += (
            ". No label is 0. If the labels of the list start at 1, subtract 1 from each label of "
            f"all lists, and set MODEL.NUM_CLASSES {last}"
        )
    elif last + 1 < classes:
        text += (
            f". The largest label is {last}. If class {last} is the last one, set "
            f"MODEL.NUM_CLASSES {last + 1}"
        )
    return [text]


def _evaluation_labels(path: Path, labels: set[int], videos: int, classes: int) -> list[str]:
    """Return one warning if a list for validation or test lacks most classes.

    A list with fewer videos than classes gets this warning only if all its videos have the same
    label, because it must lack many classes.
    """
    is_partial = len(labels) == 1 or 2 * len(labels) < classes <= videos
    if classes == 1 or not is_partial:
        return []
    return [
        f"{path}: the {videos} videos have only {len(labels)} of {classes} labels "
        f"({shorten_list(sorted(labels))}), so the accuracy says nothing about the other classes. "
        "List videos of all classes"
    ]


def repeated_videos(csv: Path, videos: Sequence[Any]) -> list[str]:
    """Return warnings about the videos that a csv file lists more than once.

    One warning is about those with different labels, and one about the others.
    """
    listed = [video for video in videos if isinstance(video, LabelledVideo)]
    resolved = resolve_paths(video.path for video in listed)
    labels = dict[str, list[int]]()
    paths = dict[str, str]()
    for path, label in listed:
        labels.setdefault(resolved[path], []).append(label)
        paths.setdefault(resolved[path], path)
    again = list[str]()
    contradictory = list[str]()
    for file, given in labels.items():
        if len(set(given)) > 1:
            contradictory.append(f"{paths[file]} (labels {format_list(sorted(set(given)))})")
        elif len(given) > 1:
            again.append(f"{paths[file]} ({len(given)} times)")
    texts = list[str]()
    if contradictory:
        texts.append(
            f"{csv}: {len(contradictory)} video(s) have contradictory labels: "
            f"{shorten_list(contradictory)}. Remove the lines with wrong labels"
        )
    if again:
        texts.append(
            f"{csv}: {len(again)} video(s) are listed more than once and are used as often per "
            f"epoch: {shorten_list(again)}"
        )
    return texts
