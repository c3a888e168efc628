"""Write the predictions of each video, the accuracy of each class, and the confusion matrix."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import class_names
from slowfast_patches.tasks.scores import Evaluation
from slowfast_patches.utils.errors import UserError, printable
from slowfast_patches.utils.files import make_folder, write_text
from slowfast_patches.utils.pictures import new_figure, save_figure

logger = logging.getLogger(__name__)

_COUNTED = 20
"""Maximum number of classes for which the confusion matrix shows a number in each cell."""


def names_of_data(recipe: Recipe) -> tuple[str, ...] | None:
    """Return the class names in the folder of the lists, or None if there are none.

    If the number of names is not MODEL.NUM_CLASSES, log a warning and return None.
    """
    try:
        return class_names(recipe)
    except UserError as error:
        logger.warning("Class indices are shown instead of class names: %s", error)
        return None


def write_predictions(
    path: Path,
    videos: Sequence[str],
    probabilities: Sequence[Tensor | None],
    names: Sequence[str] | None,
    labels: Tensor | None = None,
) -> None:
    """Write a CSV table with one row for each video.

    The columns are video, label, prediction, probability (of the predicted class), and one column
    for each class with the probability of the class.

    Args:
        path: The file to write.
        videos: Names of the V videos.
        probabilities: Probabilities (C,) of each video. None for a video that was not read, whose
            row contains only the name.
        names: Class names. If None, class indices are written instead.
        labels: Class indices (V,), or multi-hot labels (V, C), which are written separated by "|".
            If None, the table has no column "label".
    """
    count = next((len(row) for row in probabilities if row is not None), 0)
    shown = names or [str(number) for number in range(count)]
    rows = list[list[object]]()
    for number, (video, scores) in enumerate(zip(videos, probabilities, strict=True)):
        row: list[object] = [video]
        if scores is not None:
            if labels is not None:
                classes = labels[number].nonzero() if labels.ndim == 2 else labels[number]
                row.append("|".join(shown[k] for k in classes.flatten().tolist()))
            best = int(scores.argmax())
            values = [f"{value:.6g}" for value in scores.tolist()]
            row += [shown[best], values[best], *values]
        rows.append(row)
    label_column = [] if labels is None else ["label"]
    _write(path, ["video", *label_column, "prediction", "probability", *shown], rows)


def write_tables(
    folder: Path, name: str, evaluation: Evaluation, names: Sequence[str] | None = None
) -> None:
    """Write the accuracy of each class, and the confusion matrix.

    The table is {name}_classes.csv. With one label per video, its columns are class, videos,
    accuracy (in percent), and for each class the number of videos predicted as this class. The
    confusion matrix is drawn in {name}_confusion.png. With several labels per video, the
    columns are class, videos (number of videos) and average_precision (in percent).

    Args:
        folder: The folder of the files.
        name: Start of the file names.
        evaluation: The result of the test.
        names: Class names. If None, class indices are written instead.
    """
    scores = evaluation.probabilities[evaluation.scored].cpu()
    labels = evaluation.labels[evaluation.scored].cpu()
    classes = scores.shape[1]
    shown = names or [str(number) for number in range(classes)]
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
    """Draw the confusion matrix, in percent of the videos of each label."""
    from sklearn.metrics import ConfusionMatrixDisplay  # takes seconds to import

    side = min(max(6.0, 2 + 0.3 * len(shown)), 14)
    figure, [axes] = new_figure(rows=1, width=side + 1, height=side)
    percents = (100 * counts / counts.sum(1, keepdim=True).clamp(min=1)).numpy()
    names = [name.replace("$", r"\$") for name in shown]  # matplotlib parses $ as mathematics
    ConfusionMatrixDisplay(percents, display_labels=names).plot(
        ax=axes,
        include_values=len(shown) <= _COUNTED,
        values_format=".0f",
        xticks_rotation="vertical",
        cmap="Blues",
    )
    axes.set(title="Videos of each label (%)", xlabel="prediction", ylabel="label")
    axes.grid(visible=False)
    save_figure(figure, path)


def _write(path: Path, header: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    make_folder(path.parent)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([printable(str(value)) for value in row] for row in (header, *rows))
    write_text(path, text.getvalue())
