"""Which checkpoint a folder has, what a file tells, and the state that goes into and out of one."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train.checkpoint import DamagedError, buffers_of_ranks, set_buffers
from slowfast_patches.train.trainer import Progress
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.errors import RunError, UserError
from tests.slowfast_patches.train.conftest import ALONE
from tests.slowfast_patches.train.made_checkpoint import made
from tests.slowfast_patches.train.test_trainer import FACTS, SaveAndDie, make

CPU = torch.device("cpu")


def save(folder, iteration: int, training: str = "a", **values: object):
    return checkpoints.save(folder, made(iteration=iteration, training=training, **values))


# Files.


def test_checkpoints_have_names_that_sort_and_others_are_no_checkpoints(tmp_path):
    paths = [save(tmp_path, iteration) for iteration in (12, 100, 9)]
    assert [path.name for path in paths] == [
        "checkpoint_iter_00000012.pyth",
        "checkpoint_iter_00000100.pyth",
        "checkpoint_iter_00000009.pyth",
    ]
    best = save(tmp_path, 11, optimizer_state=None)
    assert best == paths[0].with_name("checkpoint_best.pyth")
    for name in ("checkpoint_iter_00000200.pyth.tmp", "checkpoint_iter_300.pyth", "a.pyth"):
        best.with_name(name).touch()
    assert checkpoints.all_checkpoints(tmp_path) == [paths[2], paths[0], paths[1]]
    assert checkpoints.last_checkpoint(tmp_path) == paths[1]
    assert checkpoints.best_checkpoint(tmp_path) == best
    assert checkpoints.last_checkpoint(tmp_path / "none") is None
    best.unlink()
    best.mkdir()
    assert checkpoints.best_checkpoint(tmp_path) is None, "a folder of this name is none"


def test_the_file_and_the_seconds_of_saving_are_logged(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    times = iter([10.0, 12.5])
    monkeypatch.setattr(checkpoints, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    path = save(tmp_path, 3)
    assert caplog.messages == [f"Checkpoint written to {path} in 2.500 s."]


def test_old_checkpoints_are_deleted_but_for_milestones_and_the_best(tmp_path, monkeypatch):
    def left() -> list[int]:
        return [int(path.stem[-8:]) for path in checkpoints.all_checkpoints(tmp_path)]

    best = save(tmp_path, 1, optimizer_state=None)
    for iteration in (2, 4, 6):
        save(tmp_path, iteration)
    assert left() == [2, 4, 6], "by default, all are kept"
    checkpoints.save(tmp_path, made(iteration=8), 2, {4})
    assert left() == [4, 6, 8]
    checkpoints.save(tmp_path, made(iteration=10), 1, {4})
    assert left() == [4, 10]
    assert best.exists()
    gone = best.with_name("checkpoint_iter_00000003.pyth")
    monkeypatch.setattr(checkpoints, "all_checkpoints", lambda _: [gone, gone])
    checkpoints.save(tmp_path, made(iteration=12), 1)
    assert best.with_name("checkpoint_iter_00000012.pyth").exists(), "another process deleted it"


def test_the_file_with_the_weights_of_a_run(tmp_path):
    last = save(tmp_path, 4)
    assert checkpoints.checkpoint_of(tmp_path) == last
    assert checkpoints.checkpoint_of(last) == last
    best = save(tmp_path, 2, optimizer_state=None)
    assert checkpoints.checkpoint_of(str(tmp_path)) == best
    last.write_bytes(b"damaged")
    assert checkpoints.checkpoint_of(tmp_path) == best
    last.unlink()
    assert checkpoints.checkpoint_of(tmp_path) == best
    best.unlink()
    for path in (tmp_path, tmp_path / "gone.pyth"):
        with pytest.raises(UserError, match=rf"^There is no checkpoint at {path}\. Give"):
            checkpoints.checkpoint_of(path)


def test_the_last_checkpoint_in_words(tmp_path):
    assert checkpoints.describe_last(tmp_path) == "There is no checkpoint yet."
    path = save(tmp_path, 4)
    assert checkpoints.describe_last(tmp_path) == f"The last checkpoint is {path}."


def test_what_an_earlier_run_left_is_moved_to_a_new_folder_each_time(tmp_path):
    assert checkpoints.move_earlier_checkpoints(tmp_path) is None
    (tmp_path / "result.json").write_text("first")
    (tmp_path / "plan.txt").write_text("stays")
    first = tmp_path / "checkpoints_before_1"
    assert checkpoints.move_earlier_checkpoints(tmp_path) == first
    assert [path.name for path in first.iterdir()] == ["result.json"]
    assert checkpoints.move_earlier_checkpoints(tmp_path) is None
    path = save(tmp_path, 4)
    for name in checkpoints.RESULTS:
        (tmp_path / name).write_text("second")
    second = tmp_path / "checkpoints_before_2"
    assert checkpoints.move_earlier_checkpoints(tmp_path) == second
    assert {path.name for path in second.iterdir()} == {path.name, *checkpoints.RESULTS}
    assert sorted(path.name for path in tmp_path.iterdir()) == [first.name, second.name, "plan.txt"]


def test_a_best_checkpoint_is_set_aside_under_the_next_free_name(tmp_path):
    for number in (1, 2):
        best = save(tmp_path, number, optimizer_state=None)
        aside = checkpoints.move_best_checkpoint(tmp_path)
        assert aside == best.with_name(f"checkpoint_best_before_{number}.pyth")
        assert checkpoints.load(aside).iteration == number
        assert not best.exists()


def test_what_a_file_lacks_or_is_not_is_said(tmp_path, caplog):
    path = tmp_path / "a.pyth"
    with pytest.raises(UserError, match=rf"^{path} cannot be read from the disk: No such file"):
        checkpoints.load(path)
    torch.save([1, 2], path)
    with pytest.raises(UserError, match="not written by this version of the trainer"):
        checkpoints.load(path)
    assert checkpoints.head_of(path) is None
    torch.save({"version": checkpoints.VERSION, "iteration": 3}, path)
    with pytest.raises(DamagedError, match=rf"^{path} lacks parts of a checkpoint \(.*epoch"):
        checkpoints.load(path)
    path.write_bytes(b"no archive")
    assert checkpoints.head_of(path) is None
    with pytest.raises(DamagedError, match=r"damaged or has another format \(.*no weights"):
        checkpoints.load(path)


def test_the_head_of_a_checkpoint_has_no_values_of_tensors(tmp_path):
    path = save(tmp_path, 4, model_state={"weight": torch.ones(3, 5)})
    head = checkpoints.head_of(path)
    assert (head.iteration, head.training) == (4, "a")
    assert head.model_state["weight"].is_meta
    assert head.model_state["weight"].shape == (3, 5)
    torch.save(vars(made(version=checkpoints.VERSION - 1)), path)
    assert checkpoints.head_of(path) is None


class Code:
    """Makes a folder where its pickle is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_code_in_a_file_is_not_run(tmp_path):
    path, made_by_code = tmp_path / "a.pyth", tmp_path / "made"
    torch.save({"version": checkpoints.VERSION, "code": Code(made_by_code)}, path)
    assert checkpoints.head_of(path) is None
    with pytest.raises(DamagedError, match="objects that are not safe to load"):
        checkpoints.load(path)
    assert not made_by_code.exists()


def test_tensors_are_detached_wherever_they_are():
    weight = nn.Parameter(torch.ones(2))
    found = checkpoints.to_cpu({"a": [weight, (weight * 2, 3)], "b": None})
    assert found["b"] is None
    assert found["a"][1][1] == 3
    for tensor, value in ((found["a"][0], 1.0), (found["a"][1][0], 2.0)):
        assert tensor.tolist() == [value] * 2
        assert not tensor.requires_grad


# The state of a training.


def test_a_checkpoint_describes_the_last_finished_iteration(tmp_path):
    asked = list[int]()
    trainer = make(tmp_path)
    trainer.progress = Progress(iteration=3, training="b", changes=["one"])
    found = checkpoints.capture(
        trainer, lambda step: asked.append(step.iteration) or FACTS, torch.ones(1, 2)
    )
    assert asked == [2]
    assert (found.iteration, found.training, found.changes) == (3, "b", ["one"])
    assert (found.world_size, found.num_videos, found.hooks) == (1, 16, {})
    assert found.running_stats.shape == (1, 2)
    assert found.ema_state is not None
    assert found.averaged is False


def test_a_state_of_the_optimizer_that_is_not_finite_is_not_stored(tmp_path):
    trainer = make(tmp_path)
    trainer.stepper.optimizer.step()
    parameters = list(trainer.stepper.model.parameters())
    for number, parameter in enumerate(parameters):
        value = torch.full_like(parameter, torch.inf if number == 1 else 1.0)
        trainer.stepper.optimizer.state[parameter] = {"momentum_buffer": value, "step": 1}
    trainer.progress.iteration = 4
    with pytest.raises(
        RunError,
        match=r"After iteration 4, 1 tensors .* such as momentum_buffer of parameter 1\. .*BASE_LR",
    ):
        checkpoints.capture(trainer, lambda _: FACTS)


def test_what_was_captured_is_restored_with_the_clock(tmp_path):
    with pytest.raises(SystemExit):
        make(tmp_path, SaveAndDie(3)).train()
    stored = checkpoints.load(checkpoints.last_checkpoint(tmp_path))
    stored.seconds["training"] = 1000.0
    stored.changes = ["a change"]
    trainer = make(tmp_path / "other")
    checkpoints.restore(trainer, stored)
    assert type(trainer.progress) is Progress
    assert trainer.progress.iteration == 3
    assert trainer.progress.changes == ["a change"]
    assert trainer.clock.seconds["training"] >= 1000.0
    for name, value in stored.model_state.items():
        assert trainer.stepper.model.state_dict()[name].equal(value)


def test_the_statistics_of_a_process_are_restored_with_its_state(tmp_path):
    trainer = make(tmp_path)
    trainer.progress.iteration = 1
    count = sum(b.numel() for b in trainer.stepper.models.buffers() if b.is_floating_point())
    found = checkpoints.capture(trainer, lambda _: FACTS, torch.full((1, count), 5.0))
    checkpoints.restore(trainer, found)
    assert values_of(trainer.stepper.models) == {5.0}


# Running statistics of several processes.


class Norms(nn.Sequential):
    """Two layers with 2 × (2 + 3) statistics, whose values are those given."""

    def __init__(self, value: float) -> None:
        super().__init__(nn.BatchNorm3d(2), nn.BatchNorm3d(3))
        for buffer in self.buffers():
            buffer.fill_(value)


def values_of(model: nn.Module) -> set[float]:
    return {float(v) for b in model.buffers() if b.is_floating_point() for v in b}


def test_statistics_of_each_process_are_stored_and_given_back(monkeypatch):
    gathered = [torch.full((10,), 1.0), torch.full((10,), 2.0)]

    def gather(own: torch.Tensor) -> list[torch.Tensor]:
        assert own.tolist() == [2.0] * 10
        return gathered

    monkeypatch.setattr(checkpoints, "gather_objects", gather)
    rows = buffers_of_ranks(Norms(2.0), World(1, 2, CPU))
    assert rows.tolist() == [[1.0] * 10, [2.0] * 10]
    for rank, value in ((0, 1.0), (1, 2.0)):
        model = Norms(9.0)
        set_buffers(model, rows, World(rank, 2, CPU))
        assert values_of(model) == {value}
        assert int(model[0].num_batches_tracked) == 9


def test_statistics_of_one_process_or_of_other_processes_are_left_as_they_are():
    assert buffers_of_ranks(Norms(2.0), ALONE) is None
    assert buffers_of_ranks(nn.Linear(2, 2), World(0, 2, CPU)) is None
    model: Any = Norms(9.0)
    set_buffers(model, None, ALONE)
    set_buffers(model, torch.zeros(2, 10), World(0, 3, CPU))
    set_buffers(model, torch.zeros(2, 10), ALONE)
    assert values_of(model) == {9.0}


def test_a_state_of_a_hook_is_tried_before_it_is_stored(tmp_path):
    trainer = make(tmp_path)
    trainer.progress.iteration = 1
    trainer.hook_states = lambda: {"Mine": {"a": [1, (2.0, "b")], "c": torch.ones(1)}}
    assert list(checkpoints.capture(trainer, lambda _: FACTS).hooks) == ["Mine"]
    trainer.hook_states = lambda: {"Mine": {"a": SimpleNamespace()}}
    with pytest.raises(RunError, match=r"state of the hook Mine cannot be stored"):
        checkpoints.capture(trainer, lambda _: FACTS)
