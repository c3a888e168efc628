"""Stopped and continued is the same as never stopped, bit for bit; tests/faults kills for it."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from slowfast_patches.train import state as state_module
from slowfast_patches.train.state import Run


class Stopped(BaseException):
    """Stands in for whatever ends a process."""


def test_stopped_twice_in_the_middle_of_epoch_phase_and_short_cycle(
    train: Callable[..., Path],
    multigrid_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opened: type,
    assert_same_run: Callable[..., None],
):
    records = opened(multigrid_run).metrics()
    for stop in (7, 11):
        before, after = records[stop - 1], records[stop]
        assert before["phase"] == after["phase"]
        assert stop % 3 != 0 < after["epoch"] % 1
        with monkeypatch.context() as patch:
            stop_after(stop, patch)
            with pytest.raises(Stopped):
                train(tmp_path)
        assert opened(tmp_path).checkpoint["iteration"] == stop
    train(tmp_path)
    said = re.findall(r"continuing after iteration (\d+)", opened(tmp_path).log)
    assert said == ["7", "11"]
    assert_same_run(opened(tmp_path), opened(multigrid_run))


def stop_after(iteration: int, patch: pytest.MonkeyPatch) -> None:
    """Save after that iteration too, and die."""
    original_iterations, original_save = state_module.checkpoint_iterations, Run.save

    def save(run: Run) -> None:
        original_save(run)
        if run.record.done == iteration:
            raise Stopped

    patch.setattr(
        state_module,
        "checkpoint_iterations",
        lambda cfg, schedule: original_iterations(cfg, schedule) | {iteration},
    )
    patch.setattr(Run, "save", save)


def test_a_finished_run_is_not_trained_again(
    train: Callable[..., Path],
    multigrid_run: Path,
    tmp_path: Path,
    opened: type,
    assert_same_run: Callable[..., None],
):
    folder = tmp_path / "copy"
    shutil.copytree(multigrid_run, folder)
    train(folder)
    assert_same_run(opened(folder), opened(multigrid_run))
    found, expected = opened(folder).result, opened(multigrid_run).result
    assert found | {key: expected[key] for key in ("date", "config")} == expected


def test_starting_over_keeps_the_earlier_checkpoints_apart(
    train: Callable[..., Path], multigrid_run: Path, tmp_path: Path, opened: type
):
    folder = tmp_path / "copy"
    shutil.copytree(multigrid_run, folder)
    short = ("SOLVER.MAX_EPOCH", 1, "SOLVER.STEPS", [], "SOLVER.LRS", [1])
    off = ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False, "TEST.ENABLE", False)
    train(folder, *short, *off, "TRAIN.AUTO_RESUME", False)
    assert len(list(folder.glob("checkpoints_before_1/*.pyth"))) > 1
    assert opened(folder).checkpoint["iteration"] == opened(folder).result["iterations"] == 6
    assert [r["iteration"] for r in opened(folder).metrics()] == [1, 2, 3, 4, 5, 6]
