"""Tables of predictions by video and of accuracy by class, and the confusion matrix."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from torch import Tensor

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import class_names
from slowfast_patches.train.evaluate import Evaluation, average_precisions
from slowfast_patches.utils.command_line import printable
from slowfast_patches.utils.files import written_whole
from slowfast_patches.utils.pictures import new_figure, save_figure

__all__ = ["names_of_data", "predictions_path", "write_predictions", "write_tables"]

logger = logging.getLogger(__name__)

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NAMED = 60
_COUNTED = 20
"""Most classes that a picture has room to name, and whose cells it has room to number."""


def names_of_data(recipe: Recipe) -> tuple[str, ...] | None:
    """Names by class number that a data set has beside its lists; None where it has none or, with a
    warning, where they are not of MODEL.NUM_CLASSES classes."""
    try:
        return class_names(recipe)
    except ValueError as error:
        logger.warning("classes are shown by their number: %s", error)
        return None


def predictions_path(recipe: Recipe, prefix: str = "") -> Path | None:
    """The file of TEST.SAVE_RESULTS_PATH, which a run replaces; None where nothing is to be saved.

    `prefix` precedes its name: "test_" for a test alone, which leaves those of a training.

    Raises:
        ValueError: it is not in OUTPUT_DIR, or there is one that no run has written.
    """
    name = recipe.test.save_results_path
    folder = Path(recipe.output_dir)
    if not name:
        return None
    path = (folder / name).with_name(prefix + Path(name).name)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(
            f"TEST.SAVE_RESULTS_PATH {name} is not in OUTPUT_DIR {folder}; give a name in it, such "
            "as predictions.csv"
        )
    if path.exists() and not _has_predictions(path):
        raise ValueError(
            f"TEST.SAVE_RESULTS_PATH {name}: {path} is there and holds no predictions; give "
            "another name, or move it"
        )
    return path


def _has_predictions(path: Path) -> bool:
    """Whether a file begins as `write_predictions` writes those of a test."""
    header = b"video,label,prediction,probability,"
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(header)) == header


def write_predictions(
    path: Path,
    videos: Sequence[str],
    probabilities: Sequence[Tensor | None],
    names: Sequence[str] | None,
    labels: Tensor | None = None,
) -> None:
    """Write a table of videos as CSV: video, label, prediction, probability, and the probability of
    each class, by its name or number.

    `probabilities` has None for a video that could not be read, whose row is its path alone;
    several labels, (V, C), are written with | between, and without any there is no such column.
    """
    count = next((len(row) for row in probabilities if row is not None), 0)
    shown = names or [str(number) for number in range(count)]
    label = [] if labels is None else ["label"]
    rows = list[list[object]]()
    for number, (video, scores) in enumerate(zip(videos, probabilities, strict=True)):
        rows.append([video])
        if scores is not None:
            best = int(scores.argmax())
            values = [f"{value:.6g}" for value in scores.tolist()]
            if labels is not None:
                rows[-1].append(_label(labels[number], shown))
            rows[-1] += [shown[best], values[best], *values]
    _write(path, ["video", *label, "prediction", "probability", *shown], rows)


def _label(label: Tensor, shown: Sequence[str]) -> str:
    numbers = label.nonzero().flatten().tolist() if label.ndim else [int(label)]
    return "|".join(shown[number] for number in numbers)


def write_tables(
    folder: Path, name: str, found: Evaluation, names: Sequence[str] | None = None
) -> None:
    """Write the accuracy of each class to `folder`/{name}_classes.csv.

    Where a video has one label, a row is class, videos, accuracy (%), and how many of its videos
    are taken for each class; {name}_confusion.png is the picture. Where it has several, it is
    class, videos, and average precision (%).
    """
    scores = found.probabilities[found.scored].cpu()
    labels = found.labels[found.scored].cpu()
    shown = names or [str(number) for number in range(scores.shape[1])]
    path = folder / f"{name}_classes.csv"
    if labels.ndim == 2:
        values = average_precisions(scores, labels)
        precisions = ["" if p is None else f"{p:.2f}" for p in values]
        rows = zip(shown, labels.sum(0).tolist(), precisions, strict=True)
        return _write(path, ["class", "videos", "average_precision"], rows)
    classes = scores.shape[1]
    pairs = labels * classes + scores.argmax(1)
    counts = pairs.bincount(minlength=classes**2).view(classes, classes)
    table = [
        [shown[c], sum(row), f"{100 * row[c] / sum(row):.2f}" if any(row) else "", *row]
        for c, row in enumerate(counts.tolist())
    ]
    _write(path, ["class", "videos", "accuracy", *shown], table)
    _plot_confusion(folder / f"{name}_confusion.png", counts, shown)
    return None


def _plot_confusion(path: Path, counts: Tensor, shown: Sequence[str]) -> None:
    """Draw a confusion matrix, each row in per cent of its class's videos."""
    from matplotlib.colors import PowerNorm  # most of a second: for who draws

    classes = len(shown)
    side = min(max(6.0, 2 + 0.3 * classes), 14)
    figure, [axes] = new_figure(rows=1, width=side + 1, height=side)
    share = (100 * counts / counts.sum(1, keepdim=True).clamp(min=1)).numpy()
    # Rare confusions, by which many classes differ, would be as white as none on a linear scale.
    image = axes.imshow(share, cmap="Blues", norm=PowerNorm(0.5, 0, 100), interpolation="nearest")
    axes.grid(visible=False)
    if classes <= _NAMED:
        axes.set_xticks(range(classes), shown, rotation=90, parse_math=False)
        axes.set_yticks(range(classes), shown, parse_math=False)
    if classes <= _COUNTED:
        for row, column in counts.nonzero().tolist():
            colour = "white" if share[row, column] > 40 else "black"
            text = str(int(counts[row, column]))
            axes.text(column, row, text, ha="center", va="center", color=colour)
    axes.set_xlabel("prediction")
    axes.set_ylabel("label")
    figure.colorbar(image, label="% of the label's videos", shrink=0.8)
    right = int(counts.diagonal().sum())
    videos = int(counts.sum())
    axes.set_title(f"{right} of {videos} videos right ({100 * right / max(1, videos):.2f} %)")
    save_figure(figure, path)


def _write(path: Path, header: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        lines = (map(_cell, row) for row in chain([header], rows))
        csv.writer(text, lineterminator="\n").writerows(lines)
        text.detach()


def _cell(value: object) -> str:
    """The text of a cell. Spreadsheets take what begins with one of _FORMULA for a formula: an
    apostrophe before it says that it is none."""
    text = printable(str(value))
    return f"'{text}" if text.startswith(_FORMULA) else text
