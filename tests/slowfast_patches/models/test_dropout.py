"""Masks that belong to clips: whoever trains a clip, beside whatever others, drops the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from slowfast_patches.models.layers.dropout import ClipDropout, set_clips

FEATURES = 4000


def dropped(clips: list[int] | None, p: float = 0.5, seed: int = 0, clip: Tensor | None = None):
    """What ones, or copies of `clip`, become."""
    dropout = ClipDropout(p, seed, FEATURES)
    set_clips(dropout, clips)
    clip = torch.ones(1, 1, 1, FEATURES) if clip is None else clip
    return dropout(clip.expand(3 if clips is None else len(clips), *clip.shape))


def test_a_clip_keeps_its_mask_in_any_company_and_order():
    together = dropped([7, 2, 10**12])
    for place, number in ((0, 10**12), (1, 7), (2, 2)):
        shuffled = dropped([10**12, 7, 2])
        assert torch.equal(shuffled[place], dropped([number])[0])
    assert torch.equal(together[1], dropped([2, 3])[0])


def test_clips_and_seeds_have_their_own_masks():
    masks = [dropped([clip], seed=seed)[0] == 0 for seed in range(3) for clip in range(3)]
    for i, a in enumerate(masks):
        for b in masks[:i]:
            # of two independent masks at one half, half agree: 2000 ± 32 of 4000
            assert 0.45 < float((a == b).double().mean()) < 0.55


def test_a_part_p_is_dropped_and_the_rest_scaled_by_what_is_kept():
    p = 0.8
    values = dropped(list(range(8)), p)
    assert values.unique().tolist() == pytest.approx([0, 1 / (1 - p)])
    assert float((values == 0).double().mean()) == pytest.approx(p, abs=0.02)
    assert float(values.mean()) == pytest.approx(1, abs=0.05)


def test_without_clips_and_in_evaluation_it_is_dropout_itself():
    ones = torch.ones(3, 1, 1, 1, FEATURES)
    ours, plain = ClipDropout(0.3, 0, FEATURES), nn.Dropout(0.3)
    torch.manual_seed(1)
    expected = plain(ones)
    torch.manual_seed(1)
    assert torch.equal(ours(ones), expected)
    set_clips(ours, [1])  # not as many as the clips of an evaluation, which do not matter
    assert torch.equal(ours.eval()(ones), ones)
