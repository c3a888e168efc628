"""Models of the recipes have the published parameters and multiply-adds (in 10^9)."""

import pytest

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.build_model import build_on_meta
from slowfast_patches.plan.flops import flops_per_clip

SLOWFAST = "SLOWFAST_8x8_R50"
R101 = "SLOWFAST_8x8_R101"
I3D_1GPU = "I3D_8x8_R50_1GPU"


def load(name: str) -> Recipe:
    return load_recipe(f"configs/Kinetics/{name}.yaml")


def multiply_adds(recipe: Recipe, frames: int, crop: int) -> float:
    """Return the 10^9 multiply-adds of a forward pass: a sixth of the FLOPs of training."""
    return flops_per_clip(recipe)(frames, crop) / 6e9


SLOWFAST_PAPER = "Feichtenhofer et al., ICCV 2019: comparison with the state of the art on Kinetics"
MODEL_ZOO = "PyTorchVideo's model zoo: I3D R50 8×8"


@pytest.mark.slow("counts the operations of whole networks")
@pytest.mark.parametrize(
    ("name", "frames", "crop", "published", "source"),
    [
        (SLOWFAST, 32, 256, 65.7, SLOWFAST_PAPER),
        (R101, 32, 256, 106.0, SLOWFAST_PAPER),
        (I3D_1GPU, 8, 256, 37.53, MODEL_ZOO),
    ],
)
def test_multiply_adds_of_a_clip_are_the_published_ones(name, frames, crop, published, source):
    assert multiply_adds(load(name), frames, crop) == pytest.approx(published, rel=0.02), source


def test_slowfast_r50_has_the_published_parameters():
    """The model is PySlowFast's SLOWFAST_8x8_R50 with 400 classes."""
    model = build_on_meta(load(SLOWFAST))
    assert sum(parameter.numel() for parameter in model.parameters()) == 34_566_488
