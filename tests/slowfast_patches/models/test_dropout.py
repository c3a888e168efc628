"""The dropout mask of a clip does not depend on the other clips of its mini-batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

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


def test_a_clip_may_have_several_rows_with_a_mask_each():
    """Rows are drawn clip by clip, so the first row of a clip is the mask of a clip of one row."""
    dropout = ClipDropout(0.5, 0, FEATURES)
    seed_dropout(dropout, [7, 2], [2, 3])
    rows = dropout(torch.ones(5, FEATURES))
    assert len({row.numpy().tobytes() for row in rows}) == 5
    alone = dropped([7, 2]).flatten(1)
    assert torch.equal(rows[[0, 2]], alone)


def test_a_rate_of_1_drops_all():
    assert dropped([3], p=1).tolist() == torch.zeros(1, 1, 1, 1, FEATURES).tolist()


def test_without_masks_and_in_evaluation_it_is_torchs_dropout():
    dropout, x = ClipDropout(0.5, 0, FEATURES), torch.ones(1, FEATURES)
    seed_dropout(dropout, [3])
    assert torch.equal(dropout.eval()(x), x)
    seed_dropout(dropout.train(), None)
    torch.manual_seed(0)
    drawn = dropout(x)
    torch.manual_seed(0)
    assert torch.equal(drawn, nn.Dropout(0.5)(x))


def test_gradients_are_those_of_the_kept_elements():
    dropout = ClipDropout(0.75, 0, FEATURES)
    seed_dropout(dropout, [3])
    x = torch.ones(1, FEATURES, requires_grad=True)
    out = dropout(x)
    out.backward(torch.full_like(x, 2.0))
    assert x.grad.tolist() == (2 * out).tolist()  # 4 or 0 times the gradient


def test_a_model_with_a_mask_seed_draws_from_torchs_generator_as_seed_and_first_clip_say():
    def drawn(seed: int | None, clips: list[int] | None) -> float:
        model = nn.Identity()
        model.mask_seed = seed
        torch.manual_seed(0)
        seed_dropout(model, clips)
        return torch.rand(()).item()

    torch.manual_seed(0)
    unseeded = torch.rand(()).item()
    assert {drawn(None, [7]), drawn(5, None), drawn(5, [])} == {unseeded}
    assert drawn(5, [7, 8]) == drawn(5, [7])
    assert len({unseeded, drawn(5, [7]), drawn(5, [8]), drawn(6, [7])}) == 4


@pytest.mark.parametrize("counts", [[1], [1, 1, 1]])
def test_each_clip_needs_a_number_of_rows(counts):
    with pytest.raises(ValueError, match="argument"):
        ClipDropout(0.5, 0, FEATURES).draw([3, 4], counts)
