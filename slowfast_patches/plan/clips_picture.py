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
from slowfast_patches.datasets.protocol import clips_per_video
from slowfast_patches.tasks import task_of
from slowfast_patches.utils.pictures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CLIPS = 3
"""Maximum number of clips in a row, which are from different videos."""
_FRAMES = 4
"""Maximum number of frames that are drawn of a clip, evenly spaced from the first to the last."""
_LABEL = 65
"""Maximum number of characters of a label."""
_WIDTH, _HEIGHT, _TITLES = 4.2, 1.5, 1.0
"""Width and height of a clip, and width of the titles of the rows, in inches."""
_TEXT: dict[str, Any] = {"fontsize": 9}
_CAPTION: dict[str, Any] = {"fontsize": 8, "loc": "left"}


def clips_figure(recipe: Recipe, schedule: Schedule) -> Figure:
    """Draw training clips of each shape, and evaluation clips, as the network sees them.

    Each shape has a row with clips of the videos with which the training begins. The rows show the
    same videos with the same random numbers, so they differ only in the shape. The clips are
    augmented, cropped and flipped, but not normalised. The last row has the evaluation
    clips of videos that are evenly spaced in the validation list.

    Args:
        recipe: The recipe. Its videos must exist.
        schedule: The schedule of the recipe.

    Raises:
        ValueError: A list is missing or invalid.
    """
    train = build_dataset(recipe, "train")
    val = build_dataset(recipe, "val")
    first = stream(recipe.rng_seed, len(train.videos), 0, min(_CLIPS, len(train.videos)))
    rows = [
        (f"{shape.batch} clips", shape, [train[ClipRequest(*each, shape, 0)] for each in first])
        for shape in schedule.shapes
    ]
    views = clips_per_video(val)
    tested = [val[number * views] for number in _evenly(len(val.videos), _CLIPS)]
    rows.append(("evaluation", schedule.base, tested))

    columns = max(len(items) for *_, items in rows)
    width, height = _WIDTH * columns + _TITLES, _HEIGHT * len(rows)
    figure, panels = new_figure(len(rows), width, height, columns=columns)
    figure.suptitle(f"up to {_FRAMES} frames of each clip, from the first to the last", **_TEXT)
    for axes in panels:
        axes.set(xticks=[], yticks=[], frame_on=False)
    names = class_names(recipe)
    for number, (what, shape, items) in enumerate(rows):
        cells = panels[number * columns :]
        title = f"{what}\n{shape.frames} frames\n{shape.crop}² pixels"
        cells[0].set_ylabel(title, rotation="horizontal", ha="right", va="center", **_TEXT)
        for axes, item in zip(cells, items, strict=False):
            classes = [] if item.get("unread") else task_of(recipe).classes(item["label"])
            labels = [names[c] if names else f"class {c}" for c in classes]
            _draw(axes, item, labels or ["unreadable video"])
    return figure


def _draw(axes: Axes, item: Mapping[str, Any], labels: Sequence[str]) -> None:
    """Draw the frames of a clip side by side, above a caption.

    The caption has the labels of the clip, the time that it spans, and the size of its crop in the
    video. Items of a user's data set (`DatasetSpec.build`) may lack the time and the crop.
    """
    clip = np.asarray(item["clip"])[:, :, :: -1 if item["flip"] else 1]
    frames = clip[_evenly(len(clip), _FRAMES)]
    axes.imshow(np.concatenate(frames, axis=1), extent=(0, len(frames), 0, 1))
    parts = list[str]()
    if "shown" in item:
        count, window, video = item["shown"]
        parts.append(f"{count / video.fps:.2g} s" if video.fps else f"{count} frames")
        size = f"{window.width:.0f}×{window.height:.0f}"
        parts.append(f"{size} of {video.width}×{video.height} pixels")
    parts += ["flipped"] * bool(item["flip"])
    caption = f"{textwrap.shorten(', '.join(labels), _LABEL, placeholder='…')}\n{', '.join(parts)}"
    axes.set_xlabel(caption, parse_math=False, **_CAPTION)


def _evenly(count: int, most: int) -> list[int]:
    """Return at most `most` evenly spaced indices below `count`, including the first and last."""
    return [round(index) for index in np.linspace(0, count - 1, min(count, most))]
