"""FLOPs and shapes of models, with small models in place of the recipe's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from multigrid import Shape
from slowfast_patches.config import load_recipe
from slowfast_patches.plan import flops
from slowfast_patches.plan.flops import check_shapes, flops_per_clip
from slowfast_patches.utils.errors import UserError


class Net(nn.Module):
    """A convolution that needs 4 frames, and a layer for the classes."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.conv = nn.Conv3d(3, 2, (4, 1, 1), bias=False)
        self.head = nn.Linear(2, classes, bias=False)

    def forward(self, pathways):
        return self.head(self.conv(pathways[-1]).mean((2, 3, 4)))


@pytest.fixture
def recipe(short_cycle_recipe):
    return load_recipe(short_cycle_recipe, ["MODEL.NUM_CLASSES", 5, "NUM_GPUS", 0])


@pytest.fixture
def built(monkeypatch):
    """`built(model)`: let recipes have this model."""

    def use(model):
        monkeypatch.setattr(flops, "build_on_meta", lambda recipe: model.to("meta"))

    return use


def test_a_step_is_three_forwards_and_a_multiply_add_two_flops(recipe, built):
    """Each of 5 × 6 × 6 outputs of two channels has 3 · 4 multiply-adds, and each class has 2."""
    built(Net())
    forward = 2 * (5 * 6 * 6 * 2 * 12 + 2 * 5)
    assert flops_per_clip(recipe)(8, 6) == 3 * forward


def test_shapes_that_fit_pass_and_one_that_does_not_is_named(recipe, built):
    built(Net())
    check_shapes(recipe, [Shape(8, 8, 32), Shape(8, 4, 32)])
    with pytest.raises(UserError, match=r"slowonly cannot take the shape 8×3×32².*NUM_FRAMES"):
        check_shapes(recipe, [Shape(8, 8, 32), Shape(8, 3, 32)])


def test_a_model_that_takes_no_shape_has_a_bug(recipe, built):
    class Broken(Net):
        def forward(self, pathways):
            raise RuntimeError("a bug")

    built(Broken())
    with pytest.raises(RuntimeError, match="a bug"):
        check_shapes(recipe, [Shape(8, 8, 32)])


@pytest.mark.parametrize(("result", "said"), [((1, 4), r"\(1, 4\)"), ("text", "str")])
def test_a_model_returns_logits_of_the_classes(recipe, built, result, said):
    class Other(Net):
        def forward(self, pathways):
            return torch.zeros(result, device="meta") if isinstance(result, tuple) else result

    built(Other())
    with pytest.raises(UserError, match=rf"returned {said} instead of \(1, 5\)"):
        check_shapes(recipe, [Shape(8, 8, 32)])


def test_batch_normalisation_is_left_out_and_the_model_is_in_training_mode(recipe, built):
    seen = []

    class Modes(Net):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm3d(2)

        def forward(self, pathways):
            seen.append((self.training, type(self.norm)))
            return super().forward(pathways)

    built(Modes().eval())
    check_shapes(recipe, [Shape(8, 8, 32)])
    assert seen == [(True, nn.Identity)]


def test_the_crop_of_the_test_is_checked_too(recipe, monkeypatch):
    checked = []
    monkeypatch.setattr(flops, "check_patches", lambda model, shapes: checked.extend(shapes))
    check_shapes(recipe.replaced({"DATA.TEST_CROP_SIZE": 48}), [Shape(8, 16, 64)])
    assert checked == [Shape(8, 16, 64), Shape(8, 16, 48)]


def test_a_model_gets_what_its_task_makes_of_one_clip(recipe, built, monkeypatch):
    """Such as the boxes of the clip."""
    asked = []

    class Task:
        def random_labels(self, clips, crop, rng):
            asked.append((clips, crop))
            return torch.zeros(clips, 1)

        def arguments(self, batch, transform, device):
            assert batch.keys() == {"clips", "flips", "labels"}
            (pathway,) = transform(batch["clips"], batch["flips"])
            asked.append(tuple(pathway.shape))
            return ([pathway],)

    built(Net())
    monkeypatch.setattr(flops, "task_of", lambda recipe: Task())
    flops_per_clip(recipe)(8, 6)
    assert asked == [(1, 6), (1, 3, 8, 6, 6)]
