"""The training loop and its hooks, with a small network and mini-batches of random tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from multigrid import Batch, Schedule, Shape, SteppedRate, make_schedule
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train.checkpoint import restore
from slowfast_patches.train.dry_run import made_up_batch
from slowfast_patches.train.hooks import (
    Agree,
    KeepBest,
    LossGuard,
    SaveCheckpoint,
    StopOnSignal,
    UnreadableGuard,
    Validate,
)
from slowfast_patches.train.trainer import Hook, Trainer
from slowfast_patches.utils.errors import RunError
from tests.conftest import assert_same_bits
from tests.slowfast_patches.train.conftest import ALONE, At
from tests.slowfast_patches.train.test_stepper import stepper

FACTS = {"epoch": 0.0, "cfg": "", "cfg_at_iteration": "", "num_videos": 16}
FACTS |= {"identity": {}, "class_names": None}
SCORES = {2: 50.0, 4: 70.0, 6: 70.0, 8: 60.0}
"""Metrics by iteration: validated after these, saved after each and after the third."""


def plan(videos: int = 16) -> Schedule:
    """8 iterations of 16 videos, of which the last two have a lower rate."""
    rate = SteppedRate(ends=(3.0, 4.0), rates=(0.1, 0.01))
    return make_schedule(Shape(8, 4, 16), videos, rate, cycles=None, bn_group_size=4)


class Noted(Hook):
    """Notes the calls, and counts the steps, also over restarts."""

    def __init__(self, calls: list[object] | None = None) -> None:
        self.calls, self.steps = [] if calls is None else calls, 0

    def before_train(self, trainer) -> None:
        self.calls.append("before")

    def after_step(self, trainer, step, outcome) -> None:
        assert outcome.loss.isfinite()
        self.steps += 1
        self.calls.append(step.iteration)

    def after_train(self, trainer) -> None:
        self.calls.append("after")

    def state_dict(self) -> dict:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict) -> None:
        self.steps = state["steps"]


class SaveAndDie(Hook):
    """Saves once so many iterations are done, and ends the process after the next."""

    def __init__(self, done: int) -> None:
        self.done = done

    def after_step(self, trainer, step, outcome) -> None:
        trainer.should_save = trainer.progress.iteration == self.done
        if trainer.progress.iteration > self.done:
            raise SystemExit


class Saves(SaveCheckpoint):
    """Notes the calls."""

    def _save(self, trainer: Trainer) -> None:
        super()._save(trainer)
        self.calls.append("saved")


def make(
    folder: Path,
    *hooks: Hook,
    validate: Callable[[int], float] = SCORES.__getitem__,
    calls: list | None = None,
) -> Trainer:
    """A trainer with the hooks of a run, resumed from the last checkpoint if there is one."""
    made, schedule = stepper(MODEL__EMA_DECAY=0.5), plan()
    stop = StopRequest(ALONE)

    def batches(start: int) -> Iterator[Batch]:
        for step in schedule.steps(start):
            recipe = made.recipe.replaced({"RNG_SEED": step.iteration})
            yield made_up_batch(recipe, 8, step.shape) | {"iteration": step.iteration}

    noted = [] if calls is None else calls
    save = Saves(str(folder), {2, 3, 4, 6, 8}, lambda _: FACTS)
    save.calls = noted
    in_order = [
        *hooks,
        Agree(),
        save,
        StopOnSignal(),
        Validate(SCORES, lambda s: {"top1": validate(s.iteration + 1)}, noted.append),
        KeepBest(str(folder), "top1", lambda _: FACTS),
        save,
    ]
    trainer = Trainer(made, schedule, batches, in_order, world=ALONE, stop=stop)
    if path := checkpoints.last_checkpoint(folder):
        restore(trainer, checkpoints.load(path))
    return trainer


def ended(trainer: Trainer) -> dict:
    """All that a training leaves, without times."""
    evaluations = [{**e, "seconds": 0} for e in trainer.progress.evaluations]
    weights = {k: v.clone() for k, v in trainer.stepper.models.state_dict().items()}
    return {
        "weights": weights,
        "optimizer": trainer.stepper.state_dict()["optimizer_state"],
        "evaluations": evaluations,
        "hooks": trainer.hook_states(),
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """An undisturbed training."""
    trainer = make(tmp_path_factory.mktemp("whole"), Noted())
    trainer.train()
    return ended(trainer)


def test_checkpoints_precede_validations_and_follow_them(tmp_path):
    calls = list[object]()
    make(tmp_path, Noted(calls), calls=calls).train()
    said = [call["top1"] if isinstance(call, dict) else call for call in calls]
    expected: list[object] = ["before"]
    for i in range(8):
        expected.append(i)
        if i + 1 in SCORES:
            expected += ["saved", SCORES[i + 1], "saved"]  # again with the metrics
        elif i + 1 == 3:
            expected.append("saved")
    assert said == [*expected, "after"]


@pytest.mark.parametrize("done", range(1, 8))
def test_resumed_at_any_iteration_it_ends_as_if_never_stopped(tmp_path, whole, done):
    with pytest.raises(SystemExit):
        make(tmp_path, Noted(), SaveAndDie(done)).train()
    calls = list[object]()
    trainer = make(tmp_path, Noted(calls))
    assert trainer.progress.iteration == done
    trainer.train()
    assert calls == ["before", *range(done, 8), "after"]
    assert_same_bits(ended(trainer), whole)


def test_a_validation_that_fails_is_repeated_before_the_next_iteration(tmp_path, whole):
    def fail(done: int) -> float:
        if done == 4:
            raise OSError("no video")
        return SCORES[done]

    with pytest.raises(OSError, match="no video"):
        make(tmp_path, Noted(), validate=fail).train()
    trainer = make(tmp_path, Noted())
    assert (trainer.progress.iteration, trainer.progress.last_evaluation) == (4, 2)
    trainer.train()
    assert_same_bits(ended(trainer), whole)


def test_the_best_is_the_first_of_equals_and_a_resumed_run_knows_it(tmp_path):
    """The best checkpoint has the averaged weights."""
    best, average = dict[int, int](), dict[int, dict]()

    def note(trainer: Trainer) -> None:
        done = trainer.progress.iteration
        state = trainer.stepper.average.state_dict()
        average[done] = {name: value.clone() for name, value in state.items()}
        if path := checkpoints.best_checkpoint(tmp_path):
            best[done] = checkpoints.load(path).iteration

    noted = [At(done, note) for done in range(1, 9)]
    with pytest.raises(SystemExit):
        make(tmp_path, *noted, SaveAndDie(5)).train()
    trainer = make(tmp_path, *noted)
    trainer.train()
    assert best == {3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 8: 4}
    assert trainer.progress.best == trainer.progress.evaluations[1]
    kept = checkpoints.load(checkpoints.best_checkpoint(tmp_path))
    assert_same_bits(kept.model_state, average[4])
    assert kept.optimizer_state is None


def test_the_best_of_iterations_that_were_given_up_is_none_any_more(tmp_path):
    """The second attempt reaches less, and has a best checkpoint of its own."""
    make(tmp_path).train()
    while checkpoints.last_checkpoint(tmp_path).name > "checkpoint_iter_00000003.pyth":
        checkpoints.last_checkpoint(tmp_path).unlink()
    trainer = make(tmp_path, validate={4: 45.0, 6: 46.0, 8: 44.0}.__getitem__)
    trainer.train()
    assert trainer.progress.best["iteration"] == 6
    best = checkpoints.load(checkpoints.best_checkpoint(tmp_path))
    assert (best.iteration, best.best) == (6, trainer.progress.best)
    aside = checkpoints.load(tmp_path / "checkpoints" / "checkpoint_best_before_1.pyth")
    assert aside.iteration == 4
    assert checkpoints.checkpoint_of(tmp_path) == checkpoints.best_checkpoint(tmp_path)


def test_a_damaged_best_checkpoint_does_not_prevent_resuming(tmp_path):
    with pytest.raises(SystemExit):
        make(tmp_path, SaveAndDie(5)).train()
    checkpoints.best_checkpoint(tmp_path).write_bytes(b"torn")
    trainer = make(tmp_path)
    trainer.train()
    assert trainer.progress.best["iteration"] == 6
    assert checkpoints.load(checkpoints.best_checkpoint(tmp_path)).iteration == 6


def test_nothing_is_written_where_a_tensor_is_not_finite(tmp_path):
    def spoil(trainer: Trainer) -> None:
        with torch.no_grad():
            next(trainer.stepper.model.parameters())[:] = torch.nan

    with pytest.raises(RunError, match="1 tensors of the training state"):
        make(tmp_path, At(2, spoil)).train()
    assert not (tmp_path / "checkpoints").exists()


def test_a_constant_of_the_model_may_be_infinite(tmp_path):
    trainer = make(tmp_path)
    mask = torch.tensor([0, -torch.inf])
    for model in trainer.stepper.models:
        model.register_buffer("mask", mask.clone())
    trainer.train()
    last = checkpoints.load(checkpoints.last_checkpoint(tmp_path))
    assert last.model_state["mask"].equal(mask)
    assert last.ema_state["mask"].equal(mask)


class Array(Hook):
    """Has a state that torch does not load from a checkpoint."""

    def state_dict(self) -> dict:
        return {"mean": np.float64(0.5)}


def test_the_state_of_a_hook_that_could_not_be_loaded_is_not_stored(tmp_path):
    with pytest.raises(RunError, match="state of the hook Array cannot be stored"):
        make(tmp_path, Array()).train()


def test_after_an_error_only_hooks_that_have_started_end(tmp_path):
    """An error of another hook's start is not replaced by one of their ends."""

    class Full(Hook):
        def before_train(self, trainer: Trainer) -> None:
            raise RunError("does not fit into memory")

    calls = list[object]()
    with pytest.raises(RunError, match="does not fit"):
        make(tmp_path, Noted(calls), Full(), Noted(later := [])).train()
    assert (calls, later) == (["before", "after"], [])


def test_each_hook_has_a_state_of_its_own(tmp_path):
    first, second = Noted(), Noted()
    second.steps = 100
    with pytest.raises(SystemExit):
        make(tmp_path, first, second, SaveAndDie(3)).train()
    first, second = Noted(), Noted()
    make(tmp_path, first, second)
    assert (first.steps, second.steps) == (3, 103)


def test_a_hook_may_add_to_the_state_of_its_base_class(tmp_path):
    class More(Hook):
        def state_dict(self) -> dict:
            return {**super().state_dict(), "a": 1}

    assert make(tmp_path, More(), Hook()).hook_states() == {More.__qualname__: {"a": 1}}


def test_processes_ask_each_other_for_stops_before_each_step(tmp_path):
    trainer, calls = make(tmp_path), list[str]()
    step = trainer.stepper.forward_backward
    trainer.stop.ask = lambda: calls.append("ask")
    trainer.stepper.forward_backward = lambda *given: calls.append("step") or step(*given)
    trainer.train()
    assert calls == ["ask", "step"] * 8


def test_a_hook_may_end_the_training_as_a_complete_one(tmp_path):
    """Run the example of docs/training.md. Its hook sees a validation after the next iteration."""
    page = Path(__file__).parents[3] / "docs" / "training.md"
    code = re.search(r"```python\n(.*?class EarlyStopping.*?)```", page.read_text(), re.DOTALL)[1]
    example: dict = {}
    exec(code, example)
    calls = list[object]()
    stop = example["EarlyStopping"](patience=1)
    make(tmp_path, Noted(calls), stop, validate=lambda done: SCORES.get(done, 60.0)).train()
    assert calls[-2:] == [6, "after"]
    again = make(tmp_path)
    assert again.should_stop
    assert again.progress.last_evaluation == again.progress.iteration == 7
    again.train()
    assert again.progress.iteration == 7


def test_an_early_end_is_saved_validated_and_kept_if_it_is_the_best(tmp_path):
    def stop(trainer: Trainer) -> None:
        trainer.should_stop = True

    make(tmp_path, At(5, stop), validate=lambda done: float(done)).train()
    trainer = make(tmp_path)
    assert trainer.progress.iteration == trainer.progress.best["iteration"] == 5
    assert checkpoints.load(checkpoints.best_checkpoint(tmp_path)).iteration == 5


@pytest.mark.parametrize("loss", [torch.nan, torch.inf])
def test_a_bad_loss_ends_the_training_before_it_changes_the_weights(tmp_path, loss):
    class Spoil(Hook):
        def after_step(self, trainer, step, outcome) -> None:
            if trainer.progress.iteration == 3:
                self.weights = [p.clone() for p in trainer.stepper.model.parameters()]
                made = trainer.stepper.forward_backward
                trainer.stepper.forward_backward = lambda *a: made(*a)._replace(
                    loss=torch.tensor(loss)
                )

    spoil = Spoil()
    trainer = make(tmp_path, LossGuard(), spoil)
    with pytest.raises(RunError, match=rf"The loss of iteration 3 is {loss} .*SOLVER.BASE_LR"):
        trainer.train()
    for after, before in zip(trainer.stepper.model.parameters(), spoil.weights, strict=True):
        assert after.equal(before)
    assert checkpoints.last_checkpoint(tmp_path).name == "checkpoint_iter_00000003.pyth"


def test_unreadable_videos_end_the_training_before_they_change_the_weights(tmp_path, caplog):
    """An epoch has 16 videos, in two iterations. 4 of the second epoch are more than a fifth."""
    failing = {1: ["a"], 2: ["a", "b"], 3: ["c", "d"]}
    trainer = make(tmp_path, UnreadableGuard(0.2))
    made, updates = trainer.stepper.forward_backward, list[int]()

    def take(step, *arguments):
        failures = [(f"{name}.mp4", "is gone") for name in failing.get(step.iteration, ())]
        return made(step, *arguments)._replace(failures=failures)

    trainer.stepper.forward_backward = take
    trainer.stepper.update = lambda: updates.append(trainer.progress.iteration)
    with pytest.raises(RunError, match=r"4 of 16 videos of epoch 2 \(iteration 3\)"):
        trainer.train()
    assert updates == [0, 1, 2]
    assert "d.mp4 is gone; another video is used instead" in caplog.text
    resumed = UnreadableGuard(0.2)
    make(tmp_path, resumed)
    assert resumed.state_dict() == {"unreadable": {1: 2}}


def test_hooks_are_called_around_the_backward_pass_of_each_iteration(tmp_path):
    """The weights change between the last two calls, and the gradients between the first two."""
    seen = list[tuple[str, int, float, float]]()

    class Watch(Hook):
        def note(self, name: str, trainer: Trainer) -> None:
            weight = next(trainer.stepper.model.parameters())
            gradient = 0.0 if weight.grad is None else float(weight.grad.abs().sum())
            weight_sum = float(weight.detach().double().sum())
            seen.append((name, trainer.progress.iteration, weight_sum, gradient))

        def before_step(self, trainer, step, batch) -> None:
            assert batch["iteration"] == step.iteration
            self.note("before", trainer)

        def after_backward(self, trainer, step, outcome) -> None:
            self.note("backward", trainer)

        def after_step(self, trainer, step, outcome) -> None:
            self.note("after", trainer)

    make(tmp_path, Watch()).train()
    assert [(name, done) for name, done, *_ in seen[:6]] == [
        ("before", 0),
        ("backward", 0),
        ("after", 1),
        ("before", 1),
        ("backward", 1),
        ("after", 2),
    ]
    for before, backward, after in zip(*[iter(seen)] * 3, strict=True):
        assert before[2] == backward[2] != after[2]
        assert backward[3] > 0
