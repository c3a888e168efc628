"""The dropout mask of a clip does not depend on the other clips of its mini-batch."""

from __future__ import annotations

import pytest
import torch

from slowfast_patches.models.layers.dropout import ClipDropout, seed_dropout

FEATURES = 4000


def dropped(clips: list[int], p: float = 0.5, seed: int = 0):
    """Apply dropout to ones."""
    dropout = ClipDropout(p, seed, FEATURES)
    seed_dropout(dropout, clips)
    return dropout(torch.ones(len(clips), 1, 1, 1, FEATURES))


def test_a_clip_keeps_its_mask_in_any_company_and_order():
    together = dropped([10**12, 7, 2])
    for place, number in ((0, 10**12), (1, 7), (2, 2)):
        assert torch.equal(together[place], dropped([number])[0])


def test_clips_and_seeds_have_their_own_masks():
    masks = [dropped([clip], seed=seed)[0] == 0 for seed in range(3) for clip in range(3)]
    for i, a in enumerate(masks):
        for b in masks[:i]:
            # Two independent masks with p = 1/2 agree in half of their elements: 2000 ± 32 of 4000.
            assert 0.45 < float((a == b).double().mean()) < 0.55


def test_a_part_p_is_dropped_and_the_rest_scaled_by_what_is_kept():
    p = 0.8
    values = dropped(list(range(8)), p)
    assert values.unique().tolist() == pytest.approx([0, 1 / (1 - p)])
    assert float((values == 0).double().mean()) == pytest.approx(p, abs=0.02)
    assert float(values.mean()) == pytest.approx(1, abs=0.05)
