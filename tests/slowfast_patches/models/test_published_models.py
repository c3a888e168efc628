"""Models of the recipes have the published parameters and multiply-adds (in 10^9)."""

import pytest

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.build import build_on_meta
from slowfast_patches.plan.flops import flops_per_clip

SLOWFAST = "SLOWFAST_8x8_R50"
R101 = "SLOWFAST_8x8_R101"
I3D_1GPU = "I3D_8x8_R50_1GPU"
TSM = "TSM_8x8_R50"
VIDEOMAE = "VIDEOMAE_B_16x4"


def load(name: str) -> Recipe:
    """Load a recipe with a type of model instead of a folder that does not exist here."""
    return load_recipe(f"configs/Kinetics/{name}.yaml", ["HF.MODEL", "videomae"])


def multiply_adds(name: str, frames: int, crop: int) -> float:
    """Return the 10^9 multiply-adds of a forward pass: a sixth of the FLOPs of training."""
    return flops_per_clip(load(name))(frames, crop) / 6e9


TSM_PAPER = "Lin, Gan and Han, ICCV 2019"
SLOWFAST_PAPER = "Feichtenhofer et al., ICCV 2019: comparison with the state of the art on Kinetics"
VIDEOMAE_PAPER = "Tong et al., NeurIPS 2022: table 6"
MODEL_ZOO = "PyTorchVideo's model zoo: I3D R50 8×8"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "frames", "crop", "published", "source"),
    [
        (SLOWFAST, 32, 256, 65.7, SLOWFAST_PAPER),
        (R101, 32, 256, 106.0, SLOWFAST_PAPER),
        (I3D_1GPU, 8, 256, 37.53, MODEL_ZOO),
        (TSM, 8, 224, 32.9, TSM_PAPER),
        (VIDEOMAE, 16, 224, 180, VIDEOMAE_PAPER),
    ],
)
def test_multiply_adds_of_a_clip_are_the_published_ones(name, frames, crop, published, source):
    assert multiply_adds(name, frames, crop) == pytest.approx(published, rel=0.02), source


def test_slowfast_r50_has_the_published_parameters():
    """The model is PySlowFast's SLOWFAST_8x8_R50 with 400 classes."""
    model = build_on_meta(load(SLOWFAST))
    assert sum(parameter.numel() for parameter in model.parameters()) == 34_566_488
