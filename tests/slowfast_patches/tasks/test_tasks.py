"""What tasks take from a mini-batch, by hand."""

import pytest
import torch

from slowfast_patches.config import load_recipe
from slowfast_patches.tasks import task_of
from slowfast_patches.tasks.scores import VideoScores

CPU = torch.device("cpu")


class TwoVideos:
    videos = (0, 1)
    __len__ = videos.__len__


def test_scores_that_are_not_numbers_have_no_accuracy():
    recipe = load_recipe(None, ["MODEL.NUM_CLASSES", 3])
    scores = VideoScores(recipe, TwoVideos(), CPU, judge=lambda *_: pytest.fail("judged"))
    part = {"videos": torch.arange(2), "labels": torch.zeros(2, dtype=torch.int64)}
    scores.add(part, torch.tensor([[0.5, 0.25, 0.25], [torch.nan] * 3]))
    with pytest.raises(ValueError, match=r"returns NaN.*lower SOLVER.BASE_LR"):
        scores.result()


def test_the_larger_share_of_a_mixed_label_counts_and_of_several_labels_none():
    scores = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
    mixed = torch.tensor([[0.8, 0.2], [0.3, 0.7]])
    single = task_of(load_recipe(None))
    assert (
        single.count_right(scores, mixed) == single.count_right(scores, torch.tensor([0, 1])) == 1
    )
    assert task_of(load_recipe(None, ["DATA.MULTI_LABEL", True])).count_right(scores, mixed).isnan()
