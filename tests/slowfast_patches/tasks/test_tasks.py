"""What tasks take from a mini-batch, by hand."""

import torch

from slowfast_patches.config import load_recipe
from slowfast_patches.tasks import task_of

CPU = torch.device("cpu")


def test_the_larger_share_of_a_mixed_label_counts_and_of_several_labels_none():
    scores = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
    mixed = torch.tensor([[0.8, 0.2], [0.3, 0.7]])
    single = task_of(load_recipe(None))
    assert (
        single.count_right(scores, mixed) == single.count_right(scores, torch.tensor([0, 1])) == 1
    )
    assert task_of(load_recipe(None, ["DATA.MULTI_LABEL", True])).count_right(scores, mixed).isnan()
