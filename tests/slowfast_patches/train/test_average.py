"""Averaged weights (MODEL.EMA_DECAY)."""

import pytest
import torch
from torch import nn

from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.models.average import AverageUpdate, start_average
from slowfast_patches.models.build_model import build_model
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.seams import BATCH_TRANSFORMS
from slowfast_patches.train.build_trainer import build_trainer
from slowfast_patches.train.dry_run import made_up_batch
from slowfast_patches.train.step import Stepper
from tests.conftest import assert_same_bits, switched_on
from tests.slowfast_patches.train.conftest import ALONE


def test_an_average_moves_by_what_the_decay_leaves_and_counts_as_its_model():
    model = nn.BatchNorm3d(2)
    average = start_average(model)
    update = AverageUpdate(average, model, 0.75)
    nn.init.constant_(model.weight, 3.0)
    model.running_mean.fill_(4.0)
    model.num_batches_tracked += 1
    for value in (1.5, 1.875):  # 1, 1.5, 1.875 with decay 0.75 on the way to 3
        update()
        assert average.weight.tolist() == pytest.approx([value] * 2)
    assert average.running_mean.tolist() == pytest.approx([1.75] * 2)  # of 4, 7/16
    assert int(average.num_batches_tracked) == 1


def test_an_average_is_a_copy_that_is_not_trained():
    model = nn.Linear(2, 2)
    average = start_average(model)
    assert not any(value.requires_grad for value in average.parameters())
    assert all(value.requires_grad for value in model.parameters())
    nn.init.zeros_(model.weight)
    assert average.weight.all()


def test_an_average_of_another_model_is_refused():
    with pytest.raises(ValueError, match="zip"):
        AverageUpdate(start_average(nn.Linear(2, 2)), nn.BatchNorm1d(2), 0.5)


FROZEN = ("TRAIN.FREEZE", "s1,s2,s3,s[1-3]_fuse", "SOLVER.WEIGHT_DECAY", 0.1)
"""The optimizer has no state of frozen weights."""


@pytest.mark.slow("trains for seconds")
@pytest.mark.parametrize(
    "keys",
    [("MODEL.ACT_CHECKPOINT", True, *switched_on(BATCH_TRANSFORMS)), FROZEN],
    ids=["recomputed and transformed", "frozen"],
)
def test_a_restored_stepper_trains_and_averages_as_one_that_was_not(tiny_config, tmp_path, keys):
    assert_continues(tiny_config, tmp_path, *keys)


def assert_continues(tiny_config, tmp_path, *keys):
    recipe = tiny_config(tmp_path, *keys, "MODEL.EMA_DECAY", 0.9)
    schedule = schedule_of(recipe, 24)

    def start() -> Stepper:
        torch.manual_seed(0)
        return Stepper(recipe, build_model(recipe, grouped_bn=True), ALONE.device)

    def take(stepper: Stepper, iterations: range) -> None:
        for step in map(schedule.at, iterations):
            clips = range(step.first_clip, step.first_clip + step.shape.batch)
            stepper(step, made_up_batch(recipe, len(clips), step.shape), clips)

    whole, continued = start(), start()
    take(whole, range(2))
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    continued.load_state_dict(torch.load(tmp_path / "state.pt"))
    for stepper in (whole, continued):
        take(stepper, range(2, 4))
    assert_same_bits(continued.models.state_dict(), whole.models.state_dict())


def test_an_average_starts_at_the_weights_that_are_given(tiny_config, tmp_path):
    recipe = tiny_config(tmp_path, "MODEL.EMA_DECAY", 0.9)
    given = build_model(recipe).state_dict()
    torch.save({"model_state": given}, tmp_path / "given.pyth")
    recipe = recipe.replaced({"TRAIN.CHECKPOINT_FILE_PATH": str(tmp_path / "given.pyth")})
    for model in build_trainer(recipe, ALONE, StopRequest(ALONE)).stepper.models:
        assert_same_bits(model.state_dict(), given)
