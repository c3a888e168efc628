"""Write the predictions of each video, the accuracy of each class, and the confusion matrix."""

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
from slowfast_patches.utils.errors import printable
from slowfast_patches.utils.files import atomic_write
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
    except ValueError as error:
        logger.warning("Class indices are shown instead of class names: %s", error)
        return None


def predictions_path(recipe: Recipe, prefix: str = "") -> Path | None:
    """Return the path of TEST.SAVE_RESULTS_PATH, or None if the key is empty.

    Args:
        recipe: The recipe.
        prefix: Prefix of the file name. A test without training uses "test_", so that it does not
            overwrite the predictions of a training.

    Raises:
        ValueError: The path is outside OUTPUT_DIR, is an existing file without predictions, or is
            the path of another result.
    """
    name = recipe.test.save_results_path
    if not name:
        return None
    path = Path(recipe.output_dir, name)
    path = path.with_name(prefix + path.name)
    if not path.resolve().is_relative_to(Path(recipe.output_dir).resolve()):
        raise ValueError(
            f"TEST.SAVE_RESULTS_PATH is {name}, which is not in OUTPUT_DIR {recipe.output_dir}. "
            "Set a relative path, such as predictions.csv."
        )
    if path.name in ("result_classes.csv", "test_classes.csv"):
        raise ValueError(
            f"TEST.SAVE_RESULTS_PATH is {name}, but {path.name} is the table of the classes. Set "
            "another name."
        )
    if path.exists() and not path.read_bytes().startswith(b"video,label,prediction,"):
        raise ValueError(
            f"TEST.SAVE_RESULTS_PATH is {name}, but {path} exists and does not contain predictions "
            "of a run. Set another name, or move the file."
        )
    return path


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
    """Draw the confusion matrix, normalized to 100 % for each label, with the accuracy as title."""
    from sklearn.metrics import ConfusionMatrixDisplay  # takes seconds to import

    side = min(max(6.0, 2 + 0.3 * len(shown)), 14)
    figure, [axes] = new_figure(rows=1, width=side + 1, height=side)
    names = [name.replace("$", r"\$") for name in shown]  # matplotlib parses $ as mathematics
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
    title = f"{right} of {total} videos correct ({100 * right / max(total, 1):.1f} %)"
    axes.set(title=title, xlabel="prediction", ylabel="label (number of videos)")
    display.im_.colorbar.set_label("% of the videos with the label")
    axes.grid(visible=False)
    save_figure(figure, path)


def _write(path: Path, header: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([printable(str(value)) for value in row] for row in (header, *rows))
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())
