"""Tests of mixup and CutMix: values by hand, and properties of all random draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.extras.mixing.mixup import Mixing

CLIPS = [10, 12, 11, 13]  # as BN groups of 2 lie in a mini-batch: 10 and 11 are neighbours


def mixing(**keys: object) -> Mixing:
    values = {f"MIXUP.{name.upper()}": value for name, value in keys.items()}
    return Mixing(default_recipe().replaced({"MODEL.NUM_CLASSES": 3, "RNG_SEED": 1, **values}))


def planes(*values: float) -> Tensor:
    """Make clips (N, 1, 2, 4, 4), each with a single value."""
    return torch.tensor(values).view(-1, 1, 1, 1, 1).repeat(1, 1, 2, 4, 4)


def test_mixup_and_cutmix_by_hand(monkeypatch):
    """Clip 10 has a quarter of 11, which has a box of 2 × 3 of its 4 × 4 pixels of 10; 12 is left
    as it is; 13 has half of 12."""
    drawn = {10: (0.25, 0, 4, 0, 4), 11: (1.0, 1, 3, 0, 3), 12: (0.0, 0, 0, 0, 0)}
    drawn[13] = (0.5, 0, 4, 0, 4)
    made = mixing()
    monkeypatch.setattr(made, "draw", lambda number, crop: drawn[number])
    fast, labels = planes(8.0, 1.0, 4.0, 3.0), torch.tensor([0, 1, 2, 0])
    pathways = [fast[:, :, :1].clone(), fast]
    mixed = made(pathways, labels, CLIPS)
    box = torch.full((4, 4), 4.0)
    box[1:3, :3] = 8.0
    for pathway in pathways:
        assert (pathway[0] == 7).all()
        assert (pathway[1] == 1).all()
        assert (pathway[2] == box).all()
        assert (pathway[3] == 2).all()
    expected = [[0.75, 0, 0.25], [0, 1, 0], [0.375, 0, 0.625], [0.5, 0.5, 0]]
    torch.testing.assert_close(mixed, torch.tensor(expected))


@pytest.mark.parametrize("numbers", [range(20, 25), range(8, 18, 2)])
def test_a_clip_is_mixed_alike_whatever_is_beside_it(numbers: range):
    """A micro-batch of a transformer has every other clip of the stream."""
    pixels, labels = torch.rand(5, 3, 2, 16, 16), torch.tensor([0, 1, 2, 2, 1])
    whole, part = pixels.clone(), pixels[2:4].clone()
    targets = mixing()([whole], labels, numbers)
    assert torch.equal(mixing()([part], labels[2:4], numbers[2:4]), targets[2:4])
    assert torch.equal(part, whole[2:4])
    assert not torch.equal(part, pixels[2:4])
    assert torch.equal(whole[4], pixels[4]), "the last has no neighbour"
    torch.testing.assert_close(targets.sum(1), torch.ones(5))


@pytest.mark.parametrize(
    ("keys", "mixups", "cutmixes"),
    [
        ({"prob": 0.5, "switch_prob": 0.2}, 400, 100),
        ({"cutmix_alpha": 0.0}, 1000, 0),
        ({"alpha": 0.0}, 0, 1000),
    ],
)
def test_what_is_drawn_is_what_the_keys_say(keys, mixups, cutmixes):
    """Of 1000 clips. The shares of Beta(1, 1) and, of mixup's, Beta(0.8, 0.8) are a half on
    average; a box that a side of the clip cuts has less."""
    made = mixing(**keys)
    drawn = torch.tensor([made.draw(number, 64) for number in range(1000)], dtype=torch.float64)
    share, top, bottom, left, right = drawn.T
    assert ((top >= 0) & (top <= bottom) & (bottom <= 64)).all()
    assert ((left >= 0) & (left <= right) & (right <= 64)).all()
    area = (bottom - top) * (right - left) / 64**2
    cut = share == 1
    blended = (area == 1) & ~cut
    assert [int(blended.sum()), int(cut.sum())] == pytest.approx([mixups, cutmixes], abs=50)
    if mixups:
        assert float(share[blended].mean()) == pytest.approx(0.5, abs=0.05)
    if cutmixes:
        assert 0.25 < float(area[cut].mean()) < 0.45
