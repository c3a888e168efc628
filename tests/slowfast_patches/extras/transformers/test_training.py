"""Steps of a video transformer: the coverage of clips, and recomputed activations."""

from unittest import mock

import pytest
import torch

from multigrid.positions import models
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.build_model import build_model
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.train.dry_run import made_up_batch
from slowfast_patches.train.step import Stepper
from tests.slowfast_patches.train.test_average import assert_continues

pytestmark = pytest.mark.slow("imports transformers")

CPU = torch.device("cpu")
CONFIG = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
CONFIG |= {"intermediate_size": 16, "patch_size": 8, "hidden_dropout_prob": 0.1}
KEYS = (
    *("MODEL.ARCH", "hf", "HF.CONFIG", str(CONFIG), "HF.DROP_PATH", 0.3, "MODEL.EMA_DECAY", 0.5),
    *("SOLVER.OPTIMIZING_METHOD", "adamw", "SOLVER.LAYER_DECAY", 0.5),
    *("BN.USE_PRECISE_STATS", False),
    *("SOLVER.ZERO_WD_1D_PARAM", True, "MULTIGRID.SIZE_DIVISOR", 8, "MULTIGRID.BN_BASE_SIZE", 8),
    *("TEST.NUM_SPATIAL_CROPS", 3, "TEST.NUM_ENSEMBLE_VIEWS", 1, "DATA.TEST_CROP_SIZE", 40),
)
"""A VideoMAE of 4 × 4 × 4 patches, tested on 4 × 5 × 5."""


@pytest.fixture
def stepper(tiny_config, tmp_path) -> Stepper:
    """Without anything random."""
    config = {**CONFIG, "hidden_dropout_prob": 0.0}
    keys = ("HF.CONFIG", str(config), "HF.DROP_PATH", 0.0, "SOLVER.ACCUMULATION_STEPS", 2)
    return stepper_of(tiny_config(tmp_path, *KEYS, *keys))


def stepper_of(recipe: Recipe) -> Stepper:
    torch.manual_seed(0)
    return Stepper(recipe, build_model(recipe, grouped_bn=True), CPU)


def test_each_part_is_told_the_coverage_of_its_clips(stepper):
    step = schedule_of(stepper.recipe, 24).at(2)
    clips = step.shape.batch
    batch = made_up_batch(stepper.recipe, clips, step.shape)
    half = torch.linspace(0.25, 1, 2 * clips).view(clips, 2)
    losses = list[float]()
    with mock.patch.object(models, "place_positions", wraps=models.place_positions) as told:
        for coverage in (torch.ones(clips, 2), half):
            outcome = stepper.forward_backward(step, batch | {"coverage": coverage})
            losses.append(float(outcome.loss))
    values = [call.args[3] for call in told.call_args_list]
    assert len(values) == 4
    torch.testing.assert_close(values[2], half[0::2])
    torch.testing.assert_close(values[3], half[1::2])
    assert losses[0] != pytest.approx(losses[1], rel=1e-6)


def test_layers_whose_activations_are_recomputed_have_the_same_gradients(stepper):
    step = schedule_of(stepper.recipe, 24).at(2)
    batch = made_up_batch(stepper.recipe, step.shape.batch, step.shape)
    lean = stepper_of(stepper.recipe.replaced({"MODEL.ACT_CHECKPOINT": True}))
    assert all(layer.gradient_checkpointing for layer in lean.model.videomae.encoder.layer)
    for made in (stepper, lean):
        made.forward_backward(step, batch)
    for ours, theirs in zip(stepper.model.parameters(), lean.model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.slow("imports transformers")
def test_a_restored_stepper_trains_and_averages_as_one_that_was_not(tiny_config, tmp_path):
    assert_continues(tiny_config, tmp_path, *KEYS)
