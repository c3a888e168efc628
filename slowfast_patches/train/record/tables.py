"""Write predictions by video, accuracy by class, and the confusion matrix."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import class_names
from slowfast_patches.tasks.scores import Evaluation
from slowfast_patches.utils.command_line import printable
from slowfast_patches.utils.files import atomic_write
from slowfast_patches.utils.pictures import new_figure, save_figure

logger = logging.getLogger(__name__)

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a cell that spreadsheets take for a formula."""
_COUNTED = 20
"""Most classes whose cells a picture has room to number."""


def names_of_data(recipe: Recipe) -> tuple[str, ...] | None:
    """Return the class names that a data set has beside its lists, or None.

    Names of another number of classes than MODEL.NUM_CLASSES are ignored, with a warning.
    """
    try:
        return class_names(recipe)
    except ValueError as error:
        logger.warning("classes are shown by their number: %s", error)
        return None


def predictions_path(recipe: Recipe, prefix: str = "") -> Path | None:
    """Return the file of TEST.SAVE_RESULTS_PATH, or None if nothing is to be saved.

    Args:
        recipe: names the file.
        prefix: precedes the file's name. A test alone uses "test_", so that it keeps the
            predictions of a training.

    Raises:
        ValueError: the path is outside OUTPUT_DIR, or the file holds something else.
    """
    name = recipe.test.save_results_path
    if not name:
        return None
    path = Path(recipe.output_dir, name)
    path = path.with_name(prefix + path.name)
    if not path.resolve().is_relative_to(Path(recipe.output_dir).resolve()):
        raise ValueError(
            f"TEST.SAVE_RESULTS_PATH {name} is not in OUTPUT_DIR {recipe.output_dir}; give a name "
            "in it, such as predictions.csv"
        )
    if path.exists() and not path.read_bytes().startswith(b"video,label,prediction,"):
        raise ValueError(
            f"TEST.SAVE_RESULTS_PATH {name}: {path} holds no predictions of a run; give another "
            "name, or move it"
        )
    return path


def write_predictions(
    path: Path,
    videos: Sequence[str],
    probabilities: Sequence[Tensor | None],
    names: Sequence[str] | None,
    labels: Tensor | None = None,
) -> None:
    """Write a CSV table: video, label, prediction, probability, and each class's probability.

    Args:
        path: the file.
        videos: names of the videos.
        probabilities: (C,) of each video, or None if it was not read. Its row is its name only.
        names: names by class number. Without them, classes are shown by number.
        labels: (V,), or (V, C) for several labels a video, which are separated by |. Without
            labels the table has no such column.
    """
    count = next((len(row) for row in probabilities if row is not None), 0)
    shown = names or list(map(str, range(count)))
    rows = list[list[object]]()
    for number, (video, scores) in enumerate(zip(videos, probabilities, strict=True)):
        rows.append([video])
        if scores is not None:
            best = int(scores.argmax())
            values = [f"{value:.6g}" for value in scores.tolist()]
            if labels is not None:
                label = labels[number]
                of_video = label.nonzero().flatten() if label.ndim else label.view(1)
                rows[-1].append("|".join(shown[k] for k in of_video.tolist()))
            rows[-1] += [shown[best], values[best], *values]
    label_column = [] if labels is None else ["label"]
    _write(path, ["video", *label_column, "prediction", "probability", *shown], rows)


def write_tables(
    folder: Path, name: str, evaluation: Evaluation, names: Sequence[str] | None = None
) -> None:
    """Write the accuracy of each class, and the confusion matrix.

    The table is `folder`/{name}_classes.csv. For one label a video its columns are class, videos,
    accuracy (%) and the number of videos that were predicted as each class, and
    {name}_confusion.png is the picture. For several labels the columns are class, videos (or boxes)
    and average precision (%).
    """
    scores = evaluation.probabilities[evaluation.scored].cpu()
    labels = evaluation.labels[evaluation.scored].cpu()
    classes = scores.shape[1]
    shown = names or list(map(str, range(classes)))
    path = folder / f"{name}_classes.csv"
    if evaluation.precisions is not None:
        percents = ["" if value is None else f"{value:.2f}" for value in evaluation.precisions]
        rows = zip(shown, labels.sum(0).tolist(), percents, strict=True)
        _write(path, ["class", "videos", "average_precision"], rows)
        return
    pairs = labels * classes + scores.argmax(1)
    counts = pairs.bincount(minlength=classes**2).view(classes, classes)
    table = [
        [shown[c], sum(row), f"{100 * row[c] / sum(row):.2f}" if any(row) else "", *row]
        for c, row in enumerate(counts.tolist())
    ]
    _write(path, ["class", "videos", "accuracy", *shown], table)
    _plot_confusion(folder / f"{name}_confusion.png", counts, shown)


def _plot_confusion(path: Path, counts: Tensor, shown: Sequence[str]) -> None:
    """Draw a confusion matrix in per cent of each label's videos, titled by the accuracy."""
    from sklearn.metrics import ConfusionMatrixDisplay  # takes seconds to import

    side = min(max(6.0, 2 + 0.3 * len(shown)), 14)
    figure, [axes] = new_figure(rows=1, width=side + 1, height=side)
    names = [name.replace("$", r"\$") for name in shown]  # matplotlib would read mathematics
    videos = counts.sum(1)
    display = ConfusionMatrixDisplay(
        (100 * counts / videos[:, None].clamp(min=1)).numpy(), display_labels=names
    )
    numbered = len(shown) <= _COUNTED
    style: dict[str, Any] = {"cmap": "Blues", "im_kw": {"vmin": 0, "vmax": 100}}
    display.plot(
        ax=axes, include_values=numbered, values_format=".0f", xticks_rotation="vertical", **style
    )
    axes.set_yticklabels(f"{name} ({n})" for name, n in zip(names, videos.tolist(), strict=True))
    right = int(counts.diagonal().sum())
    total = int(videos.sum())
    title = f"{right} of {total} videos right ({100 * right / max(total, 1):.1f} %)"
    axes.set(title=title, xlabel="prediction", ylabel="label (number of videos)")
    display.im_.colorbar.set_label("% of the label's videos")
    axes.grid(visible=False)
    save_figure(figure, path)


def _write(path: Path, header: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(map(_cell, row) for row in (header, *rows))
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())


def _cell(value: object) -> str:
    """Convert a value to text, with an apostrophe if a spreadsheet would run it as a formula."""
    text = printable(str(value))
    return f"'{text}" if text.startswith(_FORMULA) else text
