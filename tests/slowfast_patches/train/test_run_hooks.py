"""Hooks by themselves: when they act, what they call, and what they leave to others."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multigrid import ScheduleStep
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train import hooks
from slowfast_patches.train.hooks import (
    Agree,
    KeepBest,
    LossGuard,
    SaveCheckpoint,
    StopOnSignal,
    UnreadableGuard,
    Validate,
    WrapInDDP,
    count_unreadable,
    epochs_of,
    is_due,
    log_unreadable,
    settle_best,
)
from slowfast_patches.train.step import Outcome
from slowfast_patches.train.trainer import Progress, Trainer
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.errors import RunError
from slowfast_patches.utils.interruption import TrainingInterruptedError
from tests.slowfast_patches.train.conftest import ALONE
from tests.slowfast_patches.train.made_checkpoint import made
from tests.slowfast_patches.train.test_trainer import FACTS, plan

CPU = torch.device("cpu")
FIRST, SECOND = World(0, 2, CPU), World(1, 2, CPU)
NONE: Any = None


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))


class Stepper(SimpleNamespace):
    """A stepper that never steps."""

    def __init__(self) -> None:
        model = Model()
        super().__init__(
            network="network",
            model=model,
            models=torch.nn.ModuleList([model]),
            average=None,
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
        )

    def state_dict(self) -> dict:
        state = {"model_state": self.model.state_dict(), "optimizer_state": {}}
        return {**state, "ema_state": None, "scaler_state": {}}


@pytest.fixture
def trainer() -> Trainer:
    """A trainer after 4 of 8 iterations, which does not train."""
    made: Any = Stepper()
    trainer = Trainer(made, plan(), NONE, [], world=ALONE, stop=StopRequest(ALONE))
    trainer.progress = Progress(iteration=4, training="a")
    return trainer


def after_step(hook: Any, trainer: Trainer, outcome: Any = None) -> None:
    hook.after_step(trainer, trainer.schedule.at(trainer.progress.iteration - 1), outcome)


# Several processes.


def test_the_network_of_several_processes_is_wrapped(trainer, monkeypatch):
    monkeypatch.setattr(hooks, "in_parallel", lambda network, device: ("wrapped", network, device))
    WrapInDDP().before_train(trainer)
    assert trainer.stepper.network == "network"
    trainer.world = SECOND
    WrapInDDP().before_train(trainer)
    assert trainer.stepper.network == ("wrapped", "network", CPU)


@pytest.mark.parametrize(("save", "stop"), [(False, False), (True, False), (False, True)])
def test_what_a_hook_of_any_process_asks_for_is_agreed(trainer, caplog, save, stop):
    caplog.set_level(logging.INFO)
    asked = list[tuple[bool, ...]]()
    trainer.stop.any_of = lambda *flags: asked.append(flags) or [save, stop]
    trainer.should_save = True
    after_step(Agree(), trainer)
    assert asked == [(True, False)]
    assert (trainer.should_save, trainer.should_stop) == (save, stop)
    assert ("A hook ends the training after iteration 4 of 8." in caplog.text) == stop


def test_a_hook_that_ends_the_training_with_its_last_iteration_ends_nothing(trainer, caplog):
    caplog.set_level(logging.INFO)
    trainer.progress.iteration, trainer.should_stop = 8, True
    after_step(Agree(), trainer)
    assert trainer.should_stop
    assert "ends the training" not in caplog.text


def test_a_signal_ends_the_training_where_it_was_agreed(trainer):
    after_step(StopOnSignal(), trainer)
    trainer.stop.asked = 15
    after_step(StopOnSignal(), trainer)
    trainer.stop.ask()
    with pytest.raises(TrainingInterruptedError, match=r"^stopped by SIGTERM$"):
        after_step(StopOnSignal(), trainer)


# Checkpoints.


def test_it_is_due_where_it_is_scheduled_or_asked_for(trainer):
    assert is_due(trainer, {4}) is True
    assert is_due(trainer, {3, 5}) is False
    for name in ("should_save", "should_stop"):
        setattr(trainer, name, True)
        assert is_due(trainer, ()) is True
        setattr(trainer, name, False)
    trainer.stop.asked = 15
    trainer.stop.ask()
    assert is_due(trainer, ())


@pytest.fixture
def calls(monkeypatch) -> list[Any]:
    """Return the calls that `SaveCheckpoint` makes, in their order."""
    made = list[Any]()

    def note(name: str, result: object = None) -> Any:
        return lambda *given: made.append((name, *given[1:])) or result

    monkeypatch.setattr(hooks, "average_running_stats", lambda models: made.append("averaged"))
    monkeypatch.setattr(hooks, "buffers_of_ranks", note("gathered", "rows"))
    monkeypatch.setattr(hooks, "set_buffers", note("set"))
    monkeypatch.setattr(hooks, "capture", lambda trainer, data, rows: ("captured", data, rows))
    monkeypatch.setattr(hooks, "save", lambda *given: made.append(("saved", *given)))
    return made


@pytest.mark.parametrize("world", [FIRST, SECOND])
def test_a_scheduled_checkpoint_averages_and_another_keeps_the_statistics(trainer, calls, world):
    trainer.world, trainer.should_save = world, True
    hook = SaveCheckpoint("out", {4}, "facts", 7, {3})
    after_step(hook, trainer)
    saved = [("saved", "out", ("captured", "facts", None), 7, {3})] * world.is_main
    assert calls == ["averaged", *saved, ("set", None, world)]
    assert trainer.should_save is False
    calls.clear()
    trainer.progress.iteration, trainer.should_save = 5, True
    after_step(hook, trainer)
    saved = [("saved", "out", ("captured", "facts", "rows"), 7, {3})] * world.is_main
    assert calls == [("gathered", world), "averaged", *saved, ("set", "rows", world)]


def test_a_place_is_saved_once_and_again_with_its_evaluation(trainer, calls):
    hook = SaveCheckpoint("out", {4, 5}, "facts")
    hook.before_train(trainer)
    after_step(hook, trainer)
    assert calls == [], "a resumed run has the checkpoint from which it resumes"
    trainer.progress.evaluations.append({"iteration": 4})
    hook.before_train(trainer)
    assert calls.count("averaged") == 1
    after_step(hook, trainer)
    assert calls.count("averaged") == 1
    trainer.progress.iteration = 5
    after_step(hook, trainer)
    after_step(hook, trainer)
    assert calls.count("averaged") == 2
    assert calls[1][-2:] == (0, ()), "by default, all are kept"
    trainer.progress.iteration = 6
    after_step(hook, trainer)
    assert calls.count("averaged") == 2


def test_a_checkpoint_has_the_seconds_until_it_and_those_of_saving_are_its_own(trainer, calls):
    trainer.clock.load({"training": 50.0})
    trainer.clock.time = lambda activity: (calls.append(activity), torch.no_grad())[1]
    after_step(SaveCheckpoint("out", {4}, "facts"), trainer)
    assert calls[0] == "saving"
    assert trainer.progress.seconds["training"] == 50.0


# Validation.


def validate(trainer: Trainer, after: set[int], hook: str = "before_train") -> list[Any]:
    """Validate if it is due. Return the iterations that were validated, and the logged entries."""
    found = list[Any]()

    def score(step: ScheduleStep) -> dict[str, float]:
        found.append(step.iteration)
        assert trainer.clock._activity == "evaluating"
        return {"top1": 50.0}

    made = Validate(after, score, found.append)
    made.before_train(trainer) if hook == "before_train" else after_step(made, trainer)
    return found


def test_an_evaluation_tells_when_it_was_and_is_added_and_logged(trainer):
    trainer.clock.load({"training": 3.0, "loading": 0.25})
    number, entry = validate(trainer, {4}, "after_step")
    assert number == 3
    # 4 iterations of 8 clips are two epochs of 16 videos.
    assert entry == {"iteration": 4, "epoch": 2.0, "seconds": 3.25, "top1": 50.0}
    assert trainer.progress.evaluations == [entry]
    assert validate(trainer, {4}) == [], "it is there"


def test_numbers_of_an_evaluation_are_rounded(trainer):
    """4 iterations of 8 clips are 1.3333 epochs of 24 videos."""
    trainer.schedule = plan(videos=24)
    trainer.clock.load({"training": 3.0, "loading": 0.2345678})
    _, entry = validate(trainer, {4})
    assert (entry["epoch"], entry["seconds"]) == (1.3333, 3.235)


def test_when_a_validation_is_due(trainer):
    assert validate(trainer, {3, 5}) == []
    trainer.progress.ended = True
    assert validate(trainer, {3, 5})[0] == 3, "a hook has ended the training here"
    trainer.progress = Progress(iteration=0, ended=True)
    assert validate(trainer, {3}) == []
    trainer.progress = Progress(iteration=1, ended=True)
    assert validate(trainer, {3})[0] == 0
    trainer.progress = Progress(iteration=4, evaluations=[{"iteration": 2}])
    assert validate(trainer, {4}, "after_step")[0] == 3


# The best.


@pytest.fixture
def keep(trainer, tmp_path) -> Any:
    """Return `keep(iteration, top1)`, which tells a `KeepBest` hook of an evaluation."""
    hook = KeepBest(str(tmp_path), "top1", lambda _: FACTS)

    def validated(iteration: int, top1: float) -> int | None:
        trainer.progress.iteration = iteration
        trainer.progress.evaluations.append({"iteration": iteration, "top1": top1})
        after_step(hook, trainer)
        path = checkpoints.best_checkpoint(tmp_path)
        return path and checkpoints.load(path).iteration

    return validated


def test_the_best_is_saved_without_what_a_resume_needs(trainer, keep, tmp_path):
    assert keep(2, 0.0) == 2, "a first evaluation is the best, also without a right video"
    assert trainer.progress.best == {"iteration": 2, "top1": 0.0}
    best = checkpoints.load(checkpoints.best_checkpoint(tmp_path))
    assert (best.optimizer_state, best.scaler_state, best.ema_state) == (None, None, None)
    assert best.averaged is False
    assert best.best == trainer.progress.best
    assert [keep(3, 5.0), keep(4, 5.0), keep(5, 4.0), keep(6, 6.0)] == [3, 3, 3, 6]


def test_the_best_of_averaged_weights_are_those(trainer, keep, tmp_path):
    average = Model()
    torch.nn.init.constant_(average.weight, 7.0)
    trainer.stepper.average = average
    trainer.stepper.models.append(average)
    keep(2, 1.0)
    best = checkpoints.load(checkpoints.best_checkpoint(tmp_path))
    assert best.averaged is True
    assert best.model_state["weight"].tolist() == [7.0, 7.0]


def test_other_processes_know_the_best_and_write_nothing(trainer, keep, tmp_path, monkeypatch):
    trainer.world = SECOND
    monkeypatch.setattr(hooks, "settle_best", NONE)
    hook = KeepBest(str(tmp_path), "top1", NONE)
    hook.before_train(trainer)
    assert keep(2, 1.0) is None
    assert trainer.progress.best == {"iteration": 2, "top1": 1.0}


def test_a_validation_that_a_resumed_run_repeats_may_be_the_best(trainer, tmp_path):
    trainer.progress.evaluations = [{"iteration": 4, "top1": 9.0}]
    KeepBest(str(tmp_path), "top1", lambda _: FACTS).before_train(trainer)
    assert trainer.progress.best == {"iteration": 4, "top1": 9.0}
    assert checkpoints.load(checkpoints.best_checkpoint(tmp_path)).iteration == 4


def test_an_evaluation_of_an_earlier_iteration_is_no_best(trainer, tmp_path):
    trainer.progress.evaluations = [{"iteration": 3, "top1": 9.0}]
    KeepBest(str(tmp_path), "top1", NONE).before_train(trainer)
    assert trainer.progress.best == {}
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("values", "keep", "stays"),
    [
        ({"training": "a"}, True, True),
        ({"training": "b"}, True, False),
        ({"training": "a", "best": {"iteration": 1}}, True, False),
        ({"training": "a"}, False, False),
    ],
)
def test_the_best_on_the_disk_is_that_of_the_progress_or_is_set_aside(
    tmp_path, caplog, values, keep, stays
):
    best = {"iteration": 2, "top1": 1.0}
    path = checkpoints.save(tmp_path, made(optimizer_state=None, **{"best": best, **values}))
    progress = Progress(iteration=2, training="a", best=best)
    settle_best(tmp_path, progress, keep=keep)
    assert path.exists() == stays
    assert progress.best == (best if stays else {})
    assert ("is not the best of this training, and is renamed to" in caplog.text) != stays
    assert path.with_name("checkpoint_best_before_1.pyth").exists() != stays


def test_a_damaged_best_is_named_and_set_aside(tmp_path, caplog):
    path = checkpoints.save(tmp_path, made(optimizer_state=None))
    path.write_bytes(b"torn")
    progress = Progress(best={"iteration": 2})
    settle_best(tmp_path, progress, keep=True)
    assert f"The best checkpoint cannot be used: {path} cannot be read" in caplog.text
    assert not path.exists()
    assert progress.best == {}


# Guards.


def outcome(loss: float, **values: Any) -> Outcome:
    return Outcome(torch.tensor(loss), torch.zeros(1, 2), torch.zeros(1), **values)


def test_the_loss_of_all_processes_must_be_finite(trainer, monkeypatch):
    """The loss of this process stays as it is, though the sum over the ranks is in place."""
    monkeypatch.setattr(hooks, "sum_over_ranks", lambda loss: loss.add_(5.0))
    trainer.world = FIRST
    result = outcome(3.0)
    LossGuard().after_backward(trainer, trainer.schedule.at(2), result)
    assert float(result.loss) == 3.0
    for other, said in ((torch.inf, "inf"), (-torch.inf, "-inf"), (torch.nan, "nan")):
        monkeypatch.setattr(hooks, "sum_over_ranks", lambda loss, o=other: loss.add_(o))
        with pytest.raises(
            RunError,
            match=rf"^The loss of iteration 2 is {said} \(shape 8×4×16², LR 0\.1\)\. Lower",
        ):
            LossGuard().after_backward(trainer, trainer.schedule.at(2), outcome(3.0))


def test_unreadable_videos_of_all_processes_count_in_their_epochs(trainer, monkeypatch):
    """The mini-batches have 8 of 16 videos. The other process has one unreadable video in each."""
    summed = list[list[int]]()
    monkeypatch.setattr(hooks, "sum_over_ranks", lambda n: summed.append(n.tolist()) or n + 1)
    guard = UnreadableGuard(0.3)
    failures = [("a.mp4", "is gone")]
    guard.after_backward(trainer, trainer.schedule.at(0), outcome(1.0, failures=failures))
    assert summed == [], "a single process has nothing to sum"
    assert guard.state_dict() == {"unreadable": {0: 1}}
    trainer.world = FIRST
    guard.after_backward(trainer, trainer.schedule.at(1), outcome(1.0, failures=failures))
    assert summed == [[1]]
    assert guard.state_dict() == {}, "the epoch is over"
    later = {"failures": failures * 3, "failed_epochs": [1, 1, 1]}
    guard.after_backward(trainer, trainer.schedule.at(2), outcome(1.0, **later))
    assert guard.state_dict() == {"unreadable": {1: 4}}
    with pytest.raises(RunError, match=r"5 of 16 videos of epoch 2 \(iteration 3\)"):
        guard.after_backward(trainer, trainer.schedule.at(3), outcome(1.0))


def test_the_counts_of_an_epoch_are_logged_at_its_end_and_forgotten(caplog):
    caplog.set_level(logging.INFO)
    schedule, counts = plan(), dict[int, int]()
    count_unreadable(counts, schedule, schedule.at(0), [1], 1.0)
    assert (counts, caplog.text) == ({0: 1}, "")
    count_unreadable(counts, schedule, schedule.at(1), [2], 1.0)
    assert counts == {}
    assert "epoch 1 done: 3 videos could not be read" in caplog.text
    caplog.clear()
    for number in (2, 3):
        count_unreadable(counts, schedule, schedule.at(number), [0], 0.0)
    assert (counts, caplog.text) == ({}, "")


def test_each_epoch_of_a_mini_batch_needs_its_number_of_unreadable_videos():
    schedule = plan()
    with pytest.raises(ValueError, match="longer"):
        count_unreadable({}, schedule, schedule.at(0), [1, 2], 1.0)


def test_epochs_of_a_mini_batch_by_hand():
    schedule = plan()
    step = schedule.at(0)
    found = [
        epochs_of(schedule, step._replace(first_clip=first, shape=replace(step.shape, batch=size)))
        for first, size in ((0, 16), (0, 17), (15, 1), (15, 2), (16, 16), (20, 40))
    ]
    assert found == [range(1), range(2), range(1), range(2), range(1, 2), range(1, 4)]


def test_an_unreadable_video_is_logged_once_for_each_reason(caplog):
    for reason in ("is gone", "is gone", "is short", "is gone"):
        log_unreadable("only_here.mp4", reason, "it is left out")
    assert [record.getMessage() for record in caplog.records] == [
        "only_here.mp4 is gone; it is left out",
        "only_here.mp4 is short; it is left out",
    ]
