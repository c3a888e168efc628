"""Tests of the Lightning callback: what it refuses, what it saves, when it validates.

tests/test_loops.py checks that it trains the same as a plain loop, on one process and on two.
"""

from __future__ import annotations

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from torch import nn
from torch.utils.data import DataLoader

from multigrid import (
    ClipRequest,
    Cycles,
    Shape,
    SteppedRate,
    collate,
    convert_batchnorm,
    make_schedule,
    network_input,
)
from multigrid.integrations.lightning import MultigridCallback
from tests.multigrid.clips import Clips

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

VIDEOS, SEED = 40, 5
SCHEDULE = make_schedule(
    Shape(4, 4, 16),
    VIDEOS,
    SteppedRate((4.0, 6.0), (0.1, 0.01)),
    Cycles(((0.5, 0.5), (1.0, 1.0))),
    bn_size=4,
    size_divisor=8,
)
WHOLE = SCHEDULE.iterations
LATER = 9  # inside the second epoch of forty videos


class Module(L.LightningModule):
    """Module that notes its losses, and the iterations that were validated."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Conv3d(3, 4, 3, 2, 1), nn.BatchNorm3d(4), nn.AdaptiveAvgPool3d(1)]
        self.net = convert_batchnorm(nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 2)))
        self.losses, self.validated = list[float](), list[int]()

    def training_step(self, batch, number):
        loss = nn.functional.cross_entropy(self.net(network_input(batch)), batch["labels"])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, number):
        self.validated.append(self.trainer.global_step)
        self.log("score", float(-len(self.validated)), batch_size=1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.0)


class Scheduled(Module):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.ConstantLR(optimizer)]


class Killed(Module):
    """Module that saves a checkpoint within iteration LATER, and fails in iteration 16."""

    def training_step(self, batch, number):
        if number == LATER:
            self.trainer.save_checkpoint(f"{self.trainer.default_root_dir}/within.ckpt")
        if number == 16:
            raise InterruptedError
        return super().training_step(batch, number)


def fit(module, folder, *callbacks, checkpoint=None, loader=None, **options):
    """Train a module. Validate it on one clip."""
    multigrid = MultigridCallback(SCHEDULE, SEED)
    module.train_dataloader = lambda: loader or multigrid.loader(Clips(VIDEOS))
    clip = Clips(VIDEOS)[ClipRequest(0, 0, SCHEDULE.base, -1)]
    quiet = ("logger", "enable_progress_bar", "enable_model_summary")
    settings = {"max_epochs": 1, "accelerator": "cpu", "num_sanity_val_steps": 0}
    trainer = L.Trainer(
        **settings | dict.fromkeys(quiet, False) | options,
        default_root_dir=folder,
        callbacks=[*callbacks, multigrid],
    )
    validation = DataLoader([clip], collate_fn=collate)
    trainer.fit(module, val_dataloaders=validation, ckpt_path=checkpoint)
    return trainer


def saved_steps(folder):
    """Return the iterations of the checkpoints in a folder, and the newest checkpoint."""
    saved = [torch.load(file, weights_only=False) for file in folder.rglob("*.ckpt")]
    return {state["global_step"]: state for state in saved}


@pytest.mark.parametrize(
    ("options", "callbacks", "module", "message"),
    [
        ({"accumulate_grad_batches": 2}, [], Module, "accumulate_grad_batches"),
        ({"max_epochs": 2}, [], Module, "max_epochs=1"),
        ({"loader": DataLoader([0, 1])}, [], Module, "use_distributed_sampler=False"),
        ({"limit_train_batches": 0.5}, [], Module, "a shorter learning rate"),
        ({"check_val_every_n_epoch": 5}, [], Module, "=5 would never .*val_check_interval=N"),
        ({}, [GradientAccumulationScheduler({0: 4})], Module, "accumulate_grad_batches"),
        ({}, [ModelCheckpoint(every_n_epochs=2)], Module, r"ModelCheckpoint .*every_n_train_steps"),
        ({}, [EarlyStopping("score")], Module, "EarlyStopping .* val_check_interval=N"),
        ({}, [StochasticWeightAveraging(0.1)], Module, "StochasticWeightAveraging .*Leave it out"),
        ({}, [], Scheduled, "Return only the optimizer"),
    ],
)
def test_what_does_not_fit_a_training_of_one_epoch_is_refused(
    tmp_path, options, callbacks, module, message
):
    with pytest.raises(ValueError, match=message):
        fit(module(), tmp_path, *callbacks, **options)


def test_a_callback_that_has_trained_is_refused(tmp_path):
    first = fit(Module(), tmp_path)
    used = next(one for one in first.callbacks if isinstance(one, MultigridCallback))
    module = Module()
    module.train_dataloader = lambda: used.loader(Clips(VIDEOS))
    again = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, callbacks=[used], default_root_dir=tmp_path
    )
    with pytest.raises(ValueError, match="Create a new callback for each fit"):
        again.fit(module)


def test_a_trainer_without_the_callback_is_refused():
    module = Module()
    module.train_dataloader = lambda: MultigridCallback(SCHEDULE).loader(Clips(VIDEOS))
    with pytest.raises(ValueError, match="has no MultigridCallback"):
        L.Trainer(max_epochs=1, accelerator="cpu", logger=False).fit(module)


@pytest.mark.parametrize(
    ("options", "callbacks"),
    [
        ({}, []),
        ({"val_check_interval": 4}, []),
        ({"val_check_interval": 50, "check_val_every_n_epoch": None}, []),
        ({"max_steps": 7, "max_epochs": -1, "val_check_interval": 4}, []),
        ({}, [ModelCheckpoint(every_n_train_steps=50, save_last=True)]),
        ({"val_check_interval": 4}, [ModelCheckpoint(monitor="score", mode="max")]),
        ({"val_check_interval": 4}, [EarlyStopping("score", mode="max", patience=1)]),
    ],
)
def test_the_last_iteration_is_validated_and_saved(tmp_path, options, callbacks):
    module = Module()
    trainer = fit(module, tmp_path, *callbacks, **options)
    last = trainer.global_step
    assert last == (8 if EarlyStopping in map(type, callbacks) else options.get("max_steps", WHOLE))
    assert module.validated[-1] == last
    weights = saved_steps(tmp_path)[last]["state_dict"]
    assert all(torch.equal(tensor, weights[name]) for name, tensor in module.state_dict().items())
    for file in tmp_path.rglob("last*.ckpt"):
        assert torch.load(file, weights_only=False)["global_step"] == last


def test_without_checkpoints_nothing_is_saved(tmp_path):
    fit(Module(), tmp_path, enable_checkpointing=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("callbacks", "newest"),
    [
        ([], 15),  # about once in an epoch: 18 iterations in 6 epochs
        ([ModelCheckpoint(monitor="score", every_n_train_steps=5)], 15),
    ],
)
def test_a_training_that_was_killed_goes_on_bit_for_bit(tmp_path, callbacks, newest):
    whole = Module()
    fit(whole, tmp_path / "whole")
    with pytest.raises(InterruptedError):
        fit(Killed(), tmp_path / "killed", *callbacks)
    assert max(saved_steps(tmp_path / "killed" / "checkpoints")) == newest
    (checkpoint,) = (tmp_path / "killed" / "checkpoints").iterdir()
    for start, file in ((newest, checkpoint), (LATER, tmp_path / "killed" / "within.ckpt")):
        rest = Module()
        fit(rest, tmp_path / f"rest-{start}", checkpoint=file)
        assert rest.losses == whole.losses[start:]
        assert rest.validated == [WHOLE]
