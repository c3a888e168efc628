"""What tasks take from a mini-batch, by hand."""

import pytest
import torch

from slowfast_patches.config import load_recipe
from slowfast_patches.tasks import task_of
from slowfast_patches.tasks.scores import topk_accuracy
from slowfast_patches.utils.errors import UserError

CPU = torch.device("cpu")


def test_the_larger_share_of_a_mixed_label_counts_and_of_several_labels_none():
    scores = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
    mixed = torch.tensor([[0.8, 0.2], [0.3, 0.7]])
    single = task_of(load_recipe(None))
    assert (
        single.count_right(scores, mixed) == single.count_right(scores, torch.tensor([0, 1])) == 1
    )
    assert task_of(load_recipe(None, ["DATA.MULTI_LABEL", True])).count_right(scores, mixed).isnan()


@pytest.mark.parametrize(
    ("scores", "label", "k", "expected"),
    [
        ([0.2] * 5, 0, 1, 20),  # as guessing, whatever the label
        ([0.2] * 5, 4, 1, 20),
        ([0.2] * 5, 3, 2, 40),
        ([0.2] * 5, 3, 9, 100),
        ([0.1, 0.4, 0.4, 0.1], 2, 1, 50),
        ([0.1, 0.4, 0.4, 0.1], 0, 2, 0),
        ([0.1, 0.4, 0.4, 0.1], 3, 3, 50),
        ([0.1, 0.2, 0.7], 1, 1, 0),
        ([0.1, 0.2, 0.7], 1, 2, 100),
    ],
)
def test_equal_scores_share_their_ranks(scores, label, k, expected):
    found = topk_accuracy(torch.tensor([scores]), torch.tensor([label]), k)
    assert found == pytest.approx(expected)


def test_a_task_that_cannot_predict_says_so(tmp_path):
    with pytest.raises(UserError, match="class Task does not define `predict`"):
        task_of(load_recipe(None)).predict(None, "a.mp4", tmp_path / "targets.csv")
