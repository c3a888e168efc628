"""Picture of the clips that a network is trained and evaluated on."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from multigrid import ClipRequest, Schedule, stream
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import class_names
from slowfast_patches.datasets.loader import build_dataset
from slowfast_patches.datasets.protocol import VideoDataset, clips_per_video
from slowfast_patches.tasks import task_of
from slowfast_patches.utils.pictures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CLIPS = 3
"""Maximum number of clips in a row, which are from different videos."""
_FRAMES = 4
"""Maximum number of frames that are drawn of a clip, evenly spaced from the first to the last."""
_LABEL = 65
"""Maximum number of characters of a label."""


def clips_figure(recipe: Recipe, schedule: Schedule) -> Figure:
    """Draw training clips of each shape, and evaluation clips, as the network sees them.

    Each shape has a row with clips of the videos with which the training begins. The rows show the
    same videos with the same random numbers, so they differ only in the shape. The clips are
    augmented, cropped and flipped, but not normalised or mixed. The last row has the evaluation
    clips of videos that are evenly spaced in the validation list.

    Args:
        recipe: The recipe. Its videos must exist.
        schedule: The schedule of the recipe.

    Raises:
        ValueError: A list is missing or invalid.
    """
    task = task_of(recipe)

    def item(dataset: VideoDataset, request: ClipRequest | int) -> dict[str, Any]:
        found = dataset[request]
        return {**found, "classes": [] if found.get("unread") else task.classes(found["label"])}

    train = build_dataset(recipe, "train")
    val = build_dataset(recipe, "val")
    first = stream(recipe.rng_seed, len(train.videos), 0, min(_CLIPS, len(train.videos)))
    rows = {
        _title(shape.frames, shape.crop, f"{shape.batch} clips"): [
            item(train, ClipRequest(video, epoch, shape, 0)) for video, epoch in first
        ]
        for shape in schedule.shapes
    }
    views = clips_per_video(val)
    base = schedule.base
    rows[_title(base.frames, base.crop, "evaluation")] = [
        item(val, number * views) for number in _evenly(len(val.videos), _CLIPS)
    ]
    return _draw(rows, class_names(recipe))


def _title(frames: int, crop: int, which: str) -> str:
    return f"{which}\n{frames} frames\n{crop}² pixels"


def _draw(rows: Mapping[str, Sequence[Mapping[str, Any]]], names: Sequence[str] | None) -> Figure:
    """Draw a row of clips for each title."""
    columns = max(map(len, rows.values()))
    figure, panels = new_figure(len(rows), 4.2 * columns + 1, 1.5 * len(rows), columns=columns)
    figure.suptitle(f"up to {_FRAMES} frames of each clip, from the first to the last", fontsize=9)
    for axes in panels:
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.set_xticks([])
        axes.set_yticks([])
    for row, (title, items) in enumerate(rows.items()):
        cells = panels[row * columns : (row + 1) * columns]
        cells[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=9)
        for axes, item in zip(cells, items, strict=False):
            clip = np.asarray(item["clip"])[:, :, :: -1 if item["flip"] else 1]
            frames = clip[_evenly(len(clip), _FRAMES)]
            axes.imshow(np.concatenate(frames, axis=1), extent=(0, len(frames), 0, 1))
            axes.set_xlabel(_caption(item, names), fontsize=8, loc="left", parse_math=False)
    return figure


def _evenly(count: int, most: int) -> list[int]:
    """Return at most `most` evenly spaced indices below `count`, including the first and last."""
    return [round(index) for index in np.linspace(0, count - 1, min(count, most))]


def _caption(item: Mapping[str, Any], names: Sequence[str] | None) -> str:
    """Return the labels of a clip, the time that it spans, and the size of its crop in the video.

    Items of a data set that is built by `DatasetFamily.build` may lack the time and the crop.
    """
    if item.get("unread"):
        return "unreadable video"
    labels = ", ".join(names[c] if names else f"class {c}" for c in item["classes"])
    parts = ["flipped"] * bool(item["flip"])
    if "shown" in item:
        frames, window, video = item["shown"]
        span = f"{frames / video.fps:.2g} s" if video.fps else f"{frames} frames"
        crop = f"{window.width:.0f}×{window.height:.0f} of {video.width}×{video.height} pixels"
        parts = [span, crop, *parts]
    return f"{textwrap.shorten(labels, _LABEL, placeholder='…')}\n{', '.join(parts)}"
