"""What tasks take from a mini-batch, by hand."""

import pytest
import torch

from multigrid.sampler import select_clips
from slowfast_patches.config import load_recipe
from slowfast_patches.tasks import Task, task_of
from slowfast_patches.tasks.scores import VideoScores

CPU = torch.device("cpu")


@pytest.fixture
def detection() -> Task:
    return task_of(load_recipe(None, ["DETECTION.ENABLE", True]))


def test_a_part_of_a_mini_batch_has_the_boxes_of_its_clips(detection):
    """Of three clips with one, two and one boxes, the last and the first."""
    boxes = torch.tensor([[0.0, 1], [1, 2], [1, 3], [2, 4]])
    batch = {
        "clips": torch.arange(3),
        "flips": torch.tensor([True, False, False]),
        "boxes": boxes,
        "labels": torch.arange(4),
    }
    assert detection.items_of_clips(batch) == [1, 2, 1]
    assert detection.mean_items(batch, CPU) == 4
    part = select_clips(batch, slice(1, None), 3)
    assert part["clips"].tolist() == [1, 2]
    assert part["boxes"].tolist() == [[0, 2], [0, 3], [1, 4]]
    assert part["labels"].tolist() == [1, 2, 3]
    assert boxes[1, 0] == 1, "the mini-batch has changed"


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
