"""Recipes of transformers with mixup."""

import pytest

from slowfast_patches.config import load_recipe
from tests.slowfast_patches.extras.transformers.test_recipes import division_matters
from tests.slowfast_patches.models.test_published_models import multiply_adds


@pytest.mark.slow("counts the operations of whole networks")
def test_multiply_adds_of_a_clip_are_the_published_ones():
    """Tong et al., NeurIPS 2022: table 6."""
    recipe = load_recipe("configs/Kinetics/VIDEOMAE_B_16x4.yaml", ["HF.MODEL", "videomae"])
    assert multiply_adds(recipe, 16, 224) == pytest.approx(180, rel=0.02)


def test_micro_batches_of_a_transformer_divide_the_pairs():
    assert division_matters("MIXUP.ENABLE", True)
