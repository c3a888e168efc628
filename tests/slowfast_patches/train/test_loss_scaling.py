"""A training with a gradient scaler, as with float16 on a GPU, including a step that overflows."""

from __future__ import annotations

import pytest
import torch

from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train import step as step_module
from slowfast_patches.train.trainer import Hook, Trainer
from tests.conftest import assert_same_bits
from tests.slowfast_patches.train.conftest import At, die
from tests.slowfast_patches.train.test_stepper import schedule, state, stepper, take_steps
from tests.slowfast_patches.train.test_trainer import FACTS, ended, make

SCALE = 2.0**12
OVERFLOWS = 3
"""Index of the iteration whose scaled gradients are infinite."""


@pytest.fixture(autouse=True)
def _scaled(monkeypatch):
    """Scale every loss by a power of two, which changes no bit of an unscaled gradient."""

    def scaler(recipe: object, device: torch.device) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=1000)

    monkeypatch.setattr(step_module, "grad_scaler", scaler)


class Overflow(Hook):
    """Makes the gradients of an iteration infinite, and notes all weights, rates and scales."""

    def __init__(self) -> None:
        self.weights = list[torch.Tensor]()
        self.moments = list[torch.Tensor]()
        self.rates = list[float]()
        self.scales = list[float]()

    def after_backward(self, trainer, step, outcome) -> None:
        if step.iteration == OVERFLOWS:
            trainer.stepper.model.conv.weight.grad[0, 0, 0, 0, 0] = torch.inf

    def after_step(self, trainer, step, outcome) -> None:
        stepper = trainer.stepper
        weight = stepper.model.conv.weight
        self.weights.append(weight.detach().clone())
        self.moments.append(stepper.optimizer.state[weight]["momentum_buffer"].clone())
        self.rates.append(stepper.optimizer.param_groups[0]["lr"])
        self.scales.append(stepper.scaler.get_scale())


def test_a_step_that_overflows_is_skipped_and_the_schedule_goes_on(tmp_path):
    noted = Overflow()
    trainer = make(tmp_path, noted)
    trainer.train()
    assert trainer.progress.iteration == trainer.schedule.iterations == 8
    assert noted.rates == [step.lr for step in trainer.schedule.steps()]
    assert noted.scales == [SCALE] * OVERFLOWS + [SCALE / 2] * (8 - OVERFLOWS)
    moved = [not a.equal(b) for a, b in zip(noted.weights, noted.weights[1:], strict=False)]
    assert moved == [n + 1 != OVERFLOWS for n in range(7)]
    assert noted.moments[OVERFLOWS].equal(noted.moments[OVERFLOWS - 1])


@pytest.mark.parametrize("done", [2, OVERFLOWS + 1, 6])
def test_a_resumed_training_has_the_scale_of_the_one_before(tmp_path, done):
    whole = make(tmp_path / "whole", Overflow())
    whole.train()

    def save_and_die(trainer: Trainer) -> None:
        checkpoints.save(tmp_path, checkpoints.capture(trainer, lambda _: FACTS))
        die(trainer)

    with pytest.raises(SystemExit):
        make(tmp_path, Overflow(), At(done, save_and_die)).train()
    resumed = make(tmp_path, Overflow())
    assert resumed.progress.iteration == done
    assert resumed.stepper.scaler.get_scale() == (SCALE if done <= OVERFLOWS else SCALE / 2)
    resumed.train()
    assert resumed.stepper.scaler.state_dict() == whole.stepper.scaler.state_dict()
    assert_same_bits(ended(resumed), ended(whole))


@pytest.mark.parametrize("clip", ["SOLVER__CLIP_GRAD_L2NORM", "SOLVER__CLIP_GRAD_VAL"])
def test_gradients_are_clipped_after_they_are_unscaled(clip, monkeypatch):
    plan = schedule()
    scaled = stepper(**{clip: 0.02})
    assert scaled.scaler.is_enabled()
    monkeypatch.undo()
    plain, unclipped = stepper(**{clip: 0.02}), stepper()
    assert take_steps(scaled, plan, range(4)) == pytest.approx(
        take_steps(plain, plan, range(4)), rel=1e-6
    )
    take_steps(unclipped, plan, range(4))
    torch.testing.assert_close(state(scaled), state(plain), rtol=1e-5, atol=1e-7)
    difference = state(unclipped)["conv.weight"] - state(plain)["conv.weight"]
    assert difference.abs().max() > 1e-3, "the limit must matter"
