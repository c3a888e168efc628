"""Tables of predictions for videos and classes, worked out by hand."""

import csv
from pathlib import Path

import torch

from slowfast_patches.tasks.scores import Evaluation
from slowfast_patches.train.record.result_tables import write_predictions, write_tables

NAMES = ("run, fast", "$\\no_$", "$")
"""Of which two look like mathematics, which matplotlib would draw."""
SCORES = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.25, 0.25], [0.1, 0.3, 0.6], [0.0, 0.0, 0.0]])


def rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def evaluation(labels: list, precisions: list | None = None) -> Evaluation:
    """Of four videos, the last of which could not be read."""
    scored = torch.tensor([True] * 3 + [False])
    return Evaluation({}, SCORES, torch.tensor(labels), scored, precisions)


def test_rows_of_videos_have_labels_names_and_no_control_characters(tmp_path):
    path = tmp_path / "predictions.csv"
    write_predictions(path, ["x\udcff.mp4", "lost"], [SCORES[2], None], ("a", "\x1b[2J\a", "b"))
    assert rows(path) == [
        ["video", "prediction", "probability", "a", r"\x1b[2J\x07", "b"],
        [r"x\udcff.mp4", "b", "0.6", "0.1", "0.3", "0.6"],
        ["lost"],
    ]
    write_predictions(path, ["a"], [SCORES[0]], None, torch.tensor([2]))
    assert rows(path)[0] == ["video", "label", "prediction", "probability", "0", "1", "2"]
    assert rows(path)[1][:4] == ["a", "2", "0", "0.7"]
    several = torch.tensor([[1, 0, 1], [0, 0, 0]])
    write_predictions(path, ["a", "b"], list(SCORES[:2]), NAMES, several)
    assert [row[1] for row in rows(path)[1:]] == ["run, fast|$", ""]


def test_the_table_of_classes_is_the_confusion_matrix_with_its_accuracies(tmp_path):
    # Two videos of class 0, one of them right; one of class 2, right; the last is left out.
    write_tables(tmp_path, "test", evaluation([0, 1, 2, 1]), NAMES)
    assert rows(tmp_path / "test_classes.csv") == [
        ["class", "videos", "accuracy", *NAMES],
        ["run, fast", "1", "100.00", "1", "0", "0"],
        ["$\\no_$", "1", "0.00", "1", "0", "0"],
        ["$", "1", "100.00", "0", "0", "1"],
    ]
    assert (tmp_path / "test_confusion.png").read_bytes().startswith(b"\x89PNG")


def test_classes_of_several_labels_have_an_average_precision(tmp_path):
    labels = [[1, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 1]]
    write_tables(tmp_path, "result", evaluation(labels, [500 / 6, 50.0, None]))
    assert rows(tmp_path / "result_classes.csv") == [
        ["class", "videos", "average_precision"],
        *(["0", "2", "83.33"], ["1", "1", "50.00"], ["2", "0", ""]),
    ]
