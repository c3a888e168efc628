"""Scores of videos over clips and ranks, metrics and losses of tasks, worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slowfast_patches.config import load_recipe
from slowfast_patches.tasks import scores as scores_module
from slowfast_patches.tasks import task_of
from slowfast_patches.tasks.losses import WeightedCrossEntropy, class_weights
from slowfast_patches.tasks.scores import (
    VideoScores,
    average_precisions,
    check_count,
    count_clips,
    label_loss,
    multi_label_loss,
)
from slowfast_patches.utils.errors import RunError, UserError

CPU = torch.device("cpu")


class Clips:
    """Three videos of two clips each."""

    videos = ("a", "b", "c")

    def __len__(self) -> int:
        return 6


def collect(*keys: object) -> VideoScores:
    recipe = load_recipe(None, ["MODEL.NUM_CLASSES", 2, "DATA.MAX_BAD_FRACTION", 0.5, *keys])
    return task_of(recipe).scores(Clips(), CPU)


def part(videos: Sequence[int], labels: Any) -> dict[str, Tensor]:
    return {"videos": torch.tensor(videos), "labels": torch.tensor(labels)}


def test_a_video_has_the_mean_of_its_clips_in_any_order():
    made = collect()
    made.add(part([1, 0], [1, 0]), torch.tensor([[0.2, 0.8], [0.6, 0.4]]))
    made.add(part([0], [0]), torch.tensor([[0.2, 0.8]]))
    found = made.result()
    expected = torch.tensor([[0.4, 0.6], [0.2, 0.8]], dtype=torch.float64)
    torch.testing.assert_close(found.probabilities[:2], expected)
    assert found.labels.tolist() == [0, 1, 0]
    assert found.scored.tolist() == [True, True, False]
    counts = {"videos": 3, "unreadable": 1, "partly_read": 1}
    assert found.metrics == {"top1": 50} | counts
    assert found.loss == pytest.approx(-(math.log(0.4) + math.log(0.8)) / 2)


def test_with_maxima_a_video_has_the_highest_score_also_if_all_are_negative():
    made = collect("DATA.ENSEMBLE_METHOD", "max")
    made.add(part([0, 1, 0], [0, 1, 0]), torch.tensor([[-5.0, -1], [-3, -2], [-4, -2]]))
    found = made.result()
    assert found.probabilities[:2].tolist() == [[-4, -1], [-3, -2]]
    assert found.loss is None
    assert found.metrics["top1"] == 50


def test_several_labels_of_a_video_and_their_precision():
    made = collect("DATA.MULTI_LABEL", True)
    made.add(part([0, 1], [[1, 0], [1, 1]]), torch.tensor([[0.9, 0.8], [0.2, 0.4]]))
    found = made.result()
    assert found.labels.tolist() == [[1, 0], [1, 1], [0, 0]]
    assert found.precisions == pytest.approx([100, 50])
    assert found.metrics["map"] == pytest.approx(75)
    logs = [math.log(p) for p in (0.9, 1 - 0.8, 0.2, 0.4)]
    assert found.loss == pytest.approx(-sum(logs) / 4)


def join(monkeypatch: pytest.MonkeyPatch, other: VideoScores) -> None:
    """Let reductions over the ranks add the scores, clips and labels of another rank."""

    def add(values: Tensor) -> Tensor:
        theirs_of = other.clips if values.dtype == torch.int64 else other.scores
        return values.add_(theirs_of)

    def most(values: Tensor) -> Tensor:
        theirs_of = other.labels if values.dtype == torch.int64 else other.scores
        return values.copy_(torch.maximum(values, theirs_of))

    monkeypatch.setattr(scores_module, "sum_over_ranks", add)
    monkeypatch.setattr(scores_module, "max_over_ranks", most)


def test_ranks_add_scores_and_clips_and_take_the_labels_that_one_of_them_has(monkeypatch):
    """The other rank has read video 1, whose label is 1."""
    other = collect()
    other.add(part([1, 1], [1, 1]), torch.tensor([[0.1, 0.9], [0.3, 0.7]]))
    join(monkeypatch, other)
    made = collect()
    made.add(part([0, 0], [0, 0]), torch.tensor([[0.8, 0.2], [0.6, 0.4]]))
    found = made.result()
    assert found.labels[:2].tolist() == [0, 1]
    torch.testing.assert_close(found.probabilities[:2, 0].tolist(), [0.7, 0.2])
    assert found.metrics == {"top1": 100, "videos": 3, "unreadable": 1}


def test_with_maxima_a_video_has_the_highest_score_of_all_ranks(monkeypatch):
    """Each rank has read a clip of videos 0 and 1."""
    maxima = ("DATA.ENSEMBLE_METHOD", "max")
    other = collect(*maxima)
    other.add(part([0, 1], [0, 1]), torch.tensor([[-4.0, -2], [-1, -6]]))
    join(monkeypatch, other)
    made = collect(*maxima)
    made.add(part([0, 1], [0, 1]), torch.tensor([[-5.0, -1], [-3, -5]]))
    found = made.result()
    assert found.probabilities[:2].tolist() == [[-4, -1], [-1, -5]]
    assert found.metrics == {"top1": 0, "videos": 3, "unreadable": 1}


def test_nan_is_a_diverged_training():
    made = collect()
    made.add(part([0, 1, 2], [0, 1, 0]), torch.full((3, 2), torch.nan))
    with pytest.raises(UserError, match="returns NaN"):
        made.result()


@pytest.mark.parametrize(
    ("clips", "counts"),
    [
        ([2, 2, 2], {"videos": 3, "unreadable": 0}),
        ([2, 1, 0], {"videos": 3, "unreadable": 1, "partly_read": 1}),
        ([1, 1, 2], {"videos": 3, "unreadable": 0, "partly_read": 2}),
    ],
)
def test_what_was_read(clips, counts):
    recipe = load_recipe(None, ["DATA.MAX_BAD_FRACTION", 0.5])
    assert count_clips(torch.tensor(clips), 2, recipe) == counts


def test_too_few_readable_videos_end_the_run():
    recipe = load_recipe(None, ["DATA.MAX_BAD_FRACTION", 0.5])
    with pytest.raises(RunError, match="2 of 3 videos of the evaluation"):
        count_clips(torch.tensor([0, 2, 0]), 2, recipe)
    with pytest.raises(RunError, match="None of the 3 videos"):
        count_clips(torch.tensor([0, 0, 0]), 2, recipe)
    check_count(29, 100, 0.29, "epoch 3")
    with pytest.raises(RunError, match=r"30 of 100 videos of epoch 3 .*DATA.MAX_BAD_FRACTION 0.29"):
        check_count(30, 100, 0.29, "epoch 3")


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([[0.25, 0.75], [0.5, 0.5]], (math.log(4) + math.log(2)) / 2),
        ([[1.0, 0.0], [1.0, 0.0]], 50),  # of 0 and 100, the logarithm of a probability 0
        ([[1.00005, 0.0], [1.0001, 0.0]], 50),  # a rounded sum
        ([[1.0002, 0.0], [1.0, 0.0]], None),
        ([[-0.1, 0.0], [1.0, 0.0]], None),
    ],
)
def test_the_log_likelihood_of_a_label(scores, expected):
    found = label_loss(torch.tensor(scores), torch.tensor([0, 1]))
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-3))


def test_a_probability_that_is_rounded_above_1_has_no_negative_loss():
    assert label_loss(torch.tensor([[1.00005, 0.0]]), torch.tensor([0])) == 0


def test_the_log_likelihood_of_several_labels():
    labels = torch.tensor([[1, 0]])
    assert multi_label_loss(torch.tensor([[0.5, 0.5]]), labels) == pytest.approx(math.log(2))
    assert multi_label_loss(torch.tensor([[1.00005, 0.0]]), labels) == 0
    assert multi_label_loss(torch.tensor([[0.0, 0.0]]), labels) == 50
    assert multi_label_loss(torch.tensor([[2.0, 0.0]]), labels) is None


def test_precisions_of_classes_without_videos_and_of_no_labels():
    labels = torch.tensor([[1, 0], [0, 0]])
    assert average_precisions(torch.tensor([[0.9, 0.5], [0.1, 0.5]]), labels) == [100, None]
    with pytest.raises(UserError, match="none of the 2 videos has a label"):
        average_precisions(torch.rand(2, 2), 0 * labels)
    with pytest.raises(ValueError, match="longer"):
        average_precisions(torch.rand(2, 3), labels)


# Tasks.


def task(*keys: object) -> Any:
    return task_of(load_recipe(None, ["MODEL.NUM_CLASSES", 3, *keys]))


def test_random_labels_are_all_classes_and_repeat_with_the_generator():
    def draw(made: Any) -> Tensor:
        return made.random_labels(200, 8, torch.Generator().manual_seed(0))

    single, several = task(), task("DATA.MULTI_LABEL", True)
    assert draw(single).shape == (200,)
    assert set(draw(single).tolist()) == {0, 1, 2}
    assert torch.equal(draw(single), draw(single))
    labels = draw(several)
    assert (labels.shape, labels.dtype) == ((200, 3), torch.float32)
    assert labels.unique().tolist() == [0, 1]
    assert 0.4 < labels.mean() < 0.6


def test_classes_in_a_label():
    assert task().classes(np.int64(2)) == [2]
    several = task("DATA.MULTI_LABEL", True)
    assert several.classes(np.array([0.0, 1, 1])) == [1, 2]
    assert several.classes(np.array([[0.0, 1, 0], [1, 0, 0]])) == [0, 1]
    assert several.classes(np.zeros(3)) == []


def test_what_a_task_takes_from_a_mini_batch():
    made, asked = task(), list[tuple]()
    batch = {"clips": ["x", "y"], "flips": "f", "labels": torch.tensor([1, 0])}
    seen = made.arguments(batch, lambda *a: asked.append(a) or ["slow", "fast"], CPU)
    assert (seen, asked) == ((["slow", "fast"],), [(["x", "y"], "f")])
    assert made.targets(batch, CPU).tolist() == [1, 0]
    assert made.rows_of_clips(batch) == [1, 1]
    assert made.loss_normalizer(batch, CPU) == 2


def test_right_rows_are_counted():
    scores = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]])
    found = task().count_right(scores, torch.tensor([0, 1, 1]))
    assert int(found) == 2


@pytest.mark.parametrize("counts", [None, [3, 1, 4]])
def test_weights_need_both_the_key_and_the_counts(counts):
    weighted = isinstance(
        task("SOLVER.CLASS_WEIGHTS", "balanced").loss(counts), WeightedCrossEntropy
    )
    assert weighted == (counts is not None)
    assert not isinstance(task().loss(counts), WeightedCrossEntropy)
    several = ("DATA.MULTI_LABEL", True)
    assert (task(*several, "SOLVER.CLASS_WEIGHTS", "balanced").loss(counts).weight is None) == (
        counts is None
    )
    assert task(*several).loss(counts).weight is None


def test_class_weights_by_hand():
    found = class_weights("balanced", [4, 1, 0], shares=[4, 1, 0])
    assert found.tolist() == pytest.approx([0.625, 2.5, 2.5])
    assert found.dtype == torch.float32
    tiny = class_weights([0.1, 0.2], [1, 1], shares=[1, 1])
    assert tiny.tolist() == pytest.approx([2 / 3, 4 / 3])


def test_a_mixed_label_has_the_mean_of_its_classes_weights():
    loss = WeightedCrossEntropy(torch.tensor([0.5, 4.0]), 0.0)
    mixed = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    found = float(loss(torch.zeros(2, 2), mixed))
    assert found == pytest.approx(math.log(2) * ((0.375 + 1) + (0.125 + 3)) / 2)
    assert SimpleNamespace(**dict(loss.named_buffers())).weight is loss.weight
