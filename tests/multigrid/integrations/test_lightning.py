"""Tests of the Lightning callback: what it refuses, what it saves, when it validates.

tests/test_loops.py checks that it trains the same as a plain loop, on one process and on two.
"""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
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
from multigrid.integrations.lightning import MultigridCallback, _check_trainer, _place_loops
from tests.multigrid.clips import Clips

pytestmark = pytest.mark.filterwarnings("ignore")


def slow(*values):
    """Return a case for the whole suite: the quick tests have one like it."""
    return pytest.param(*values, marks=pytest.mark.slow("the quick tests have a case like it"))


VIDEOS, SEED = 40, 5
SCHEDULE = make_schedule(
    Shape(4, 4, 16),
    VIDEOS,
    SteppedRate((4.0, 6.0), (0.1, 0.01)),
    Cycles(((0.5, 0.5), (1.0, 1.0))),
    bn_group_size=4,
    size_divisor=8,
)
WHOLE, EPOCHS, LENGTH = 18, 6, 3  # iterations, epochs, and iterations in an epoch


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
    """Module that saves a checkpoint within iteration 9, and fails in iteration 16."""

    def training_step(self, batch, number):
        if batch["iteration"] == 9:
            self.trainer.save_checkpoint(f"{self.trainer.default_root_dir}/within.ckpt")
        if batch["iteration"] == 16:
            raise InterruptedError
        return super().training_step(batch, number)


class Stop(L.Callback):
    """Callback that stops the training after an iteration, as EarlyStopping and Timer do."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.should_stop = True


def fit(module, folder, *callbacks, checkpoint=None, loader=None, **options):
    """Train a module. Validate it on one clip."""
    multigrid = MultigridCallback(SCHEDULE, SEED)
    module.train_dataloader = lambda: loader or multigrid.loader(Clips(VIDEOS))
    clip = Clips(VIDEOS)[ClipRequest(0, 0, SCHEDULE.base, -1)]
    quiet = ("logger", "enable_progress_bar", "enable_model_summary")
    settings = {"max_epochs": EPOCHS, "accelerator": "cpu", "num_sanity_val_steps": 0}
    trainer = L.Trainer(
        **settings | dict.fromkeys(quiet, False) | options,
        default_root_dir=folder,
        callbacks=[*callbacks, multigrid],
    )
    validation = DataLoader([clip], collate_fn=collate)
    trainer.fit(module, val_dataloaders=validation, ckpt_path=checkpoint)
    return trainer


def saved_steps(folder):
    """Return the iterations of the checkpoints in a folder, and the checkpoints."""
    saved = [torch.load(file, weights_only=False) for file in folder.rglob("*.ckpt")]
    return {state["global_step"]: state for state in saved}


def equal(one, other) -> bool:
    states = one.state_dict(), other.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Module:
    module = Module()
    trainer = fit(module, tmp_path_factory.mktemp("whole"))
    assert (trainer.global_step, trainer.current_epoch) == (WHOLE, EPOCHS)
    assert module.validated == list(range(LENGTH, WHOLE + 1, LENGTH))
    return module


@pytest.mark.parametrize(
    ("options", "callbacks", "module", "message"),
    [
        ({"accumulate_grad_batches": 2}, [], Module, "accumulate_grad_batches"),
        ({"loader": DataLoader([0, 1])}, [], Module, "use_distributed_sampler=False"),
        ({"limit_train_batches": 0.5}, [], Module, "a shorter learning rate"),
        ({}, [GradientAccumulationScheduler({3: 4})], Module, "GradientAccumulationScheduler"),
        ({}, [StochasticWeightAveraging(0.1)], Module, "StochasticWeightAveraging .*Leave it out"),
        ({}, [], Scheduled, "Return only the optimizer"),
    ],
)
def test_what_changes_the_batch_or_the_rate_is_refused(
    tmp_path, options, callbacks, module, message
):
    with pytest.raises(ValueError, match=message):
        fit(module(), tmp_path, *callbacks, **options)


@pytest.mark.parametrize(("epochs", "trained"), [(2, 2 * LENGTH), (7, WHOLE)])
def test_another_number_of_epochs_is_warned_of(tmp_path, epochs, trained):
    with pytest.warns(UserWarning, match=f"max_epochs={epochs}.* 6 epochs"):
        assert fit(Module(), tmp_path, max_epochs=epochs).global_step == trained


def test_a_callback_that_has_trained_is_refused(tmp_path):
    first = fit(Module(), tmp_path, max_epochs=1)
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
        ({"val_check_interval": 2}, []),
        slow({"val_check_interval": 50, "check_val_every_n_epoch": None}, []),
        slow({"check_val_every_n_epoch": 3}, []),
        ({"max_steps": 7, "max_epochs": -1, "val_check_interval": 2}, []),
        ({}, [ModelCheckpoint(every_n_train_steps=50, save_last=True)]),
        slow({}, [ModelCheckpoint(every_n_epochs=4, monitor="score", mode="max")]),
        slow({}, [OnExceptionCheckpoint("unused")]),
        ({}, [EarlyStopping("score", mode="max", patience=1)]),
    ],
)
def test_the_last_iteration_is_validated_and_saved(tmp_path, options, callbacks, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = Module()
    trainer = fit(module, tmp_path, *callbacks, **options)
    last = trainer.global_step
    stops = EarlyStopping in map(type, callbacks)
    assert last == (2 * LENGTH if stops else options.get("max_steps", WHOLE))
    assert module.validated[-1] == last
    weights = saved_steps(tmp_path)[last]["state_dict"]
    assert all(torch.equal(tensor, weights[name]) for name, tensor in module.state_dict().items())
    for file in tmp_path.rglob("last*.ckpt"):
        assert torch.load(file, weights_only=False)["global_step"] == last


def test_without_checkpoints_nothing_is_saved(tmp_path):
    fit(Module(), tmp_path, enable_checkpointing=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("way", "stop"),
    [
        slow("should_stop", 1),
        ("should_stop", 6),
        slow("should_stop", 17),
        ("max_steps", 5),
        slow("max_steps", 6),
        slow("max_epochs", 12),
    ],
)
def test_a_training_that_was_stopped_goes_on_bit_for_bit(tmp_path, whole, way, stop):
    options = {"max_steps": {"max_steps": stop}, "max_epochs": {"max_epochs": stop // LENGTH}}
    callbacks = [Stop(stop)] if way == "should_stop" else []
    begun = Module()
    fit(begun, tmp_path, *callbacks, **options.get(way, {}))
    assert begun.losses == whole.losses[:stop]
    (file,) = tmp_path.rglob("*.ckpt")
    rest = Module()
    trainer = fit(rest, tmp_path / "rest", checkpoint=file)
    assert rest.losses == whole.losses[stop:]
    assert equal(rest, whole)
    assert (trainer.global_step, trainer.current_epoch) == (WHOLE, EPOCHS)
    assert rest.validated == [step for step in whole.validated if step > stop]


@pytest.mark.parametrize("saver", [slow("epochs"), slow("steps"), "within"])
def test_a_training_that_was_killed_goes_on_bit_for_bit(tmp_path, whole, saver):
    every = {"save_top_k": -1} | ({"every_n_train_steps": 1} if saver == "steps" else {})
    with pytest.raises(InterruptedError):
        fit(Killed(), tmp_path, ModelCheckpoint(tmp_path / "saved", **every))
    files = {9: tmp_path / "within.ckpt"}
    if saver != "within":
        files = {torch.load(file)["global_step"]: file for file in (tmp_path / "saved").iterdir()}
        assert sorted(files) == (list(range(1, 17)) if saver == "steps" else [3, 6, 9, 12, 15])
    for step in sorted(files)[-2:]:
        rest = Module()
        trainer = fit(rest, tmp_path / f"rest-{step}", checkpoint=files[step])
        assert rest.losses == whole.losses[step:]
        assert equal(rest, whole)
        assert (trainer.global_step, trainer.current_epoch) == (WHOLE, EPOCHS)


class Unfreeze(BaseFinetuning):
    """Callback that trains the first layer from the third epoch on, as Lightning's docs show."""

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.net[0])

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 2:
            self.unfreeze_and_add_param_group(pl_module.net[0], optimizer, train_bn=True)


class Average(WeightAveraging):
    """Callback that averages the weights after each epoch from the third on."""

    def should_update(self, step_idx=None, epoch_idx=None):
        return epoch_idx is not None and epoch_idx >= 2


class Head(Module):
    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.0)


def test_callbacks_act_by_epochs(tmp_path):
    start = Module().net[0].weight
    module = Head()
    trainer = fit(module, tmp_path, Unfreeze())
    assert not torch.equal(module.net[0].weight, start)
    first, added = (group["lr"] for group in trainer.optimizers[0].param_groups)
    assert added == pytest.approx(first / 10), "Lightning gives new layers a tenth of the rate"
    averaged = Module()
    fit(averaged, tmp_path, Average())
    assert not torch.equal(averaged.net[0].weight, start)


class Manual(Module):
    """Module that steps two optimizers itself, and leaves out every fourth iteration."""

    automatic_optimization = False

    def training_step(self, batch, number):
        loss = super().training_step(batch, number)
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        if batch["iteration"] % 4 != 3:
            for optimizer in self.optimizers():
                optimizer.step()

    def configure_optimizers(self):
        layers = self.net[0], self.net[4]
        return [torch.optim.SGD(layer.parameters(), lr=0.0) for layer in layers]


def test_several_optimizers_and_skipped_steps_are_resumed(tmp_path):
    whole, begun, rest = Manual(), Manual(), Manual()
    fit(whole, tmp_path / "whole")
    fit(begun, tmp_path / "begun", Stop(12))  # after 8 iterations, of which two were left out
    assert len(begun.losses) == 7
    (file,) = (tmp_path / "begun").rglob("*.ckpt")
    fit(rest, tmp_path / "rest", checkpoint=file)
    assert [*begun.losses, *rest.losses] == whole.losses
    assert equal(rest, whole)


# Without a training.


def check(max_epochs, max_steps=-1):
    trainer = SimpleNamespace(callbacks=[], max_epochs=max_epochs, max_steps=max_steps)
    _check_trainer(trainer, MultigridCallback(SCHEDULE).training)


@pytest.mark.parametrize(
    ("epochs", "steps"), [(EPOCHS, -1), (-1, -1), (None, -1), (1000, -1), (2, 0), (2, 5)]
)
def test_lightning_s_default_and_a_number_of_steps_are_no_other_number_of_epochs(epochs, steps):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "max_epochs")
        check(epochs, steps)


def start(*, iteration, trained, batches=LENGTH, fast_dev_run=False):
    """Begin to train with a callback at an iteration, in a Trainer that has trained some steps."""
    multigrid = MultigridCallback(SCHEDULE)
    multigrid.training.iteration = iteration
    progress = SimpleNamespace(total=SimpleNamespace(processed=trained))
    trainer = SimpleNamespace(
        train_dataloader=multigrid.loader(Clips(VIDEOS)),
        num_training_batches=batches,
        fast_dev_run=fast_dev_run,
        fit_loop=SimpleNamespace(
            epoch_loop=SimpleNamespace(batch_progress=progress), max_batches=batches
        ),
        optimizers=[],
        strategy=SimpleNamespace(model=nn.Linear(1, 1)),
        current_epoch=0,
    )
    multigrid.on_train_start(trainer, None)
    return trainer


@pytest.mark.parametrize("iteration", [1, WHOLE])
def test_a_callback_at_an_iteration_that_the_trainer_has_not_reached_is_refused(iteration):
    with pytest.raises(ValueError, match="Create a new callback for each fit"):
        start(iteration=iteration, trained=0)
    start(iteration=iteration, trained=1)
    start(iteration=0, trained=0)


def test_a_limit_of_the_batches_is_refused_unless_lightning_only_tries_the_code():
    for batches in (LENGTH - 1, LENGTH + 1):
        with pytest.raises(ValueError, match="limit_train_batches and overfit_batches"):
            start(iteration=0, trained=0, batches=batches)
    start(iteration=0, trained=0, batches=1, fast_dev_run=True)
    trainer = start(iteration=0, trained=0, batches=100, fast_dev_run=True)
    assert trainer.fit_loop.max_batches == WHOLE


def test_a_checkpoint_of_weights_alone_has_no_loops_to_place():
    multigrid = MultigridCallback(SCHEDULE)
    saved = {"callbacks": {multigrid.state_key: {"iteration": 4}}}
    multigrid.on_load_checkpoint(SimpleNamespace(training=True), None, saved)
    multigrid.on_load_checkpoint(SimpleNamespace(training=False), None, {"loops": {}})


def test_one_epoch_less_stops_early_and_one_more_changes_nothing():
    with pytest.warns(UserWarning, match="stops the training before the 6 epochs"):
        check(EPOCHS - 1)
    with pytest.warns(UserWarning, match="the schedule has 6 epochs, after which"):
        check(EPOCHS + 1)


def progress(*, epoch, ready, batch, iteration):
    """Return the progress of Lightning's loops: epochs that are over and begun, and batches."""
    epochs = {"processed": epoch, "completed": epoch, "ready": ready, "started": ready}
    batches = dict.fromkeys(("ready", "started", "processed", "completed"), batch)
    total = dict.fromkeys(batches, iteration)
    return {
        "epoch_progress": {"total": dict(epochs), "current": dict(epochs)},
        "epoch_loop.batch_progress": {"total": total, "current": batches, "is_last_batch": True},
        "epoch_loop.state_dict": {"_batches_that_stepped": -5},
    }


@pytest.mark.parametrize(
    ("saved", "iteration", "placed"),
    [
        # Stopped after 7 iterations: Lightning counts the third epoch as over.
        (
            {"epoch": 3, "ready": 3, "batch": 0, "iteration": 9},
            7,
            {"epoch": 2, "ready": 3, "batch": 1, "iteration": 7},
        ),
        # Stopped at the end of the second epoch.
        (
            {"epoch": 2, "ready": 2, "batch": 3, "iteration": 6},
            6,
            {"epoch": 2, "ready": 2, "batch": 0, "iteration": 6},
        ),
        # A whole epoch more was counted than was trained.
        (
            {"epoch": 3, "ready": 3, "batch": 0, "iteration": 9},
            4,
            {"epoch": 1, "ready": 2, "batch": 1, "iteration": 4},
        ),
        # One mini-batch more was counted than was trained.
        (
            {"epoch": 1, "ready": 2, "batch": 2, "iteration": 5},
            4,
            {"epoch": 1, "ready": 2, "batch": 1, "iteration": 4},
        ),
    ],
)
def test_saved_loops_are_placed_at_the_iteration(saved, iteration, placed):
    loops = progress(**saved)
    _place_loops(loops, iteration, MultigridCallback(SCHEDULE).training)
    expected = progress(**placed)
    expected["epoch_loop.batch_progress"]["is_last_batch"] = False
    expected["epoch_loop.state_dict"]["_batches_that_stepped"] = iteration
    assert loops == expected


@pytest.mark.parametrize(
    ("saved", "iteration"),
    [
        ({"epoch": 1, "ready": 2, "batch": 1, "iteration": 4}, 4),  # they agree
        ({"epoch": 1, "ready": 2, "batch": 3, "iteration": 6}, 6),  # saved before its epoch ends
        ({"epoch": 6, "ready": 6, "batch": 3, "iteration": WHOLE}, WHOLE),  # complete
    ],
)
def test_loops_that_agree_stay_as_they_were_saved(saved, iteration):
    loops = progress(**saved)
    _place_loops(loops, iteration, MultigridCallback(SCHEDULE).training)
    assert loops == progress(**saved)


def test_a_checkpoint_without_the_callback_is_refused_in_a_training_alone():
    multigrid = MultigridCallback(SCHEDULE)
    multigrid.on_load_checkpoint(SimpleNamespace(training=False), None, {})
    for checkpoint in ({}, {"callbacks": {"other": {}}}):
        with pytest.raises(ValueError, match="was saved without MultigridCallback"):
            multigrid.on_load_checkpoint(SimpleNamespace(training=True), None, checkpoint)


def test_the_last_epoch_is_told_its_length():
    """18 iterations in epochs of 3. A limit of the user stays."""
    for epoch, limit, expected in ((0, 3, 3), (5, 3, 3), (5, 100, 3), (4, 100, 6), (5, 2, 2)):
        loop = SimpleNamespace(max_batches=limit)
        trainer = SimpleNamespace(current_epoch=epoch, fit_loop=loop)
        MultigridCallback(SCHEDULE).on_train_epoch_start(trainer, None)
        assert loop.max_batches == expected


def test_the_callback_fixes_the_layout_of_gradients_and_knows_its_epochs(tmp_path, monkeypatch):
    fixed = []
    monkeypatch.setattr("multigrid.integrations.lightning.fix_gradient_layout", fixed.append)
    module = Module()
    fit(module, tmp_path, max_epochs=1, enable_checkpointing=False)
    assert fixed == [module]
    assert MultigridCallback(SCHEDULE).epochs == EPOCHS


@pytest.mark.parametrize(
    ("most", "steps", "stops"), [(-1, 7, False), (8, 7, False), (7, 7, True), (0, 0, True)]
)
def test_an_iteration_is_over_whether_the_module_stepped_or_not(most, steps, stops, monkeypatch):
    """The callback stops the training after max_steps, so that Lightning validates."""
    averaged = []
    monkeypatch.setattr("multigrid.integrations.lightning.average_running_stats", averaged.append)
    multigrid, model = MultigridCallback(SCHEDULE), nn.Linear(1, 1)
    training = multigrid.training
    training.model, training.optimizer = model, torch.optim.SGD(model.parameters(), lr=0.0)
    training.begin(0)
    model(torch.ones(1, 1)).sum().backward()
    assert multigrid.state_dict()["iteration"] == 0
    trainer = SimpleNamespace(max_steps=most, global_step=steps, should_stop=False)
    multigrid.on_train_batch_end(trainer, model, None, None, 0)
    assert multigrid.state_dict()["iteration"] == 1
    assert trainer.should_stop is stops
    assert averaged == [model]


def test_the_loader_has_an_empty_state_so_that_lightning_resumes_within_an_epoch():
    loader = MultigridCallback(SCHEDULE).loader(Clips(VIDEOS))
    assert loader.state_dict() == {}
    loader.load_state_dict({})
