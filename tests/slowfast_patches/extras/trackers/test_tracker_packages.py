"""What is asked of the packages of trackers, with stand-ins that note each call."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from slowfast_patches.config.recipe import Recipe, default_recipe, values_by_key
from slowfast_patches.extras.trackers import hook as tracker_module
from slowfast_patches.extras.trackers.hook import Tracker, check_tracker
from slowfast_patches.utils.errors import UserError

Package = Callable[[str], mock.Mock]


def recipe_of(folder: Path, name: str) -> Recipe:
    keys = {"OUTPUT_DIR": str(folder), "TRACKER.NAME": name, "TRACKER.PROJECT": "words"}
    return default_recipe().replaced({**keys, "TEST.ENABLE": False})


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Package:
    """`package("mlflow")`: a stand-in for the package of this name."""

    def make(name: str) -> mock.Mock:
        made = mock.Mock()
        monkeypatch.setitem(sys.modules, name, made)
        return made

    return make


def start(folder: Path, name: str, run_id: str | None) -> tracker_module._Run:
    return tracker_module._RUNS[name](recipe_of(folder, name), run_id)


def test_a_missing_package_is_named_before_the_training(monkeypatch, package, tmp_path):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(UserError, match=r"NAME trackio needs .* Run pip install trackio"):
        check_tracker(recipe_of(tmp_path, "trackio"))
    package("trackio")
    check_tracker(recipe_of(tmp_path, "trackio"))


@pytest.mark.parametrize(("complete", "status"), [(True, "FINISHED"), (False, "KILLED")])
def test_a_new_run_of_mlflow_has_the_recipe_and_ends_as_the_training(
    package, tmp_path, monkeypatch, complete, status
):
    for name in ("MAX_RETRIES", "TIMEOUT"):
        monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_{name}", "unset")
        monkeypatch.delenv(f"MLFLOW_HTTP_REQUEST_{name}")
    mlflow = package("mlflow")
    mlflow.start_run.return_value.info.run_id = "run 7"
    run = start(tmp_path / "training", "mlflow", None)
    assert (run.id, run.is_empty) == ("run 7", False)
    mlflow.set_experiment.assert_called_once_with("words")
    mlflow.start_run.assert_called_once_with(None, run_name="training")
    mlflow.log_params.assert_called_once_with(
        values_by_key(recipe_of(tmp_path / "training", "mlflow"))
    )
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1"
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "20"
    run.log({"train/loss": 1.5}, 3)
    mlflow.log_metrics.assert_called_once_with({"train/loss": 1.5}, 3)
    run.close(complete)
    mlflow.end_run.assert_called_once_with(status)


def test_a_continued_run_of_mlflow_keeps_the_recipe_and_the_users_patience(
    package, tmp_path, monkeypatch
):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "7")
    mlflow = package("mlflow")
    start(tmp_path, "mlflow", "run 7")
    mlflow.start_run.assert_called_once_with("run 7", run_name=tmp_path.name)
    mlflow.log_params.assert_not_called()
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "5"
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "7"


@pytest.mark.parametrize("complete", [True, False])
def test_a_run_of_wandb_is_resumed_by_its_id_and_has_iterations_as_its_axis(
    package, tmp_path, complete
):
    wandb = package("wandb")
    theirs = wandb.init.return_value
    theirs.id, theirs.offline = "run 7", False
    run = start(tmp_path / "training", "wandb", "run 7")
    assert (run.id, run.is_empty) == ("run 7", False)
    asked = wandb.init.call_args.kwargs
    assert (asked["project"], asked["name"]) == ("words", "training")
    assert (asked["id"], asked["resume"]) == ("run 7", "allow")
    assert asked["dir"] == str(tmp_path / "training")
    assert asked["config"]["SOLVER.BASE_LR"] == 0.1
    wandb.Settings.assert_called_once_with(x_transaction_log_flush_interval=1.0, init_timeout=20)
    theirs.define_metric.assert_called_once_with("*", step_metric="iteration")
    run.log({"train/loss": 1.5}, 3)
    theirs.log.assert_called_once_with({"train/loss": 1.5, "iteration": 3})
    run.close(complete)
    theirs.finish.assert_called_once_with(exit_code=0 if complete else 1)


@pytest.mark.parametrize("run_id", ["run[7]", None])
def test_offline_wandb_has_one_folder_of_a_run_and_those_of_other_runs(package, tmp_path, run_id):
    new = tmp_path / "offline-run-2-run[7]"
    others = [tmp_path / name for name in ("offline-run-1-run7", "offline-run-1-run[77]")]
    old = tmp_path / "offline-run-1-run[7]"
    for folder in (new, old, *others):
        folder.mkdir()
        (folder / "points").touch()
    theirs = package("wandb").init.return_value
    theirs.id, theirs.offline, theirs.settings.sync_dir = "run[7]", True, str(new)
    assert start(tmp_path, "wandb", run_id).is_empty
    left = {folder.name for folder in tmp_path.iterdir()}
    assert left == {new.name, *(each.name for each in others)} | (
        {old.name} if not run_id else set()
    )


def test_an_older_folder_that_cannot_be_deleted_does_not_end_the_training(tmp_path, monkeypatch):
    (tmp_path / "offline-run-1-x").mkdir()
    monkeypatch.setattr("os.rmdir", mock.Mock(side_effect=PermissionError))
    tracker_module._delete_older(tmp_path / "offline-run-2-x", "x")
    assert (tmp_path / "offline-run-1-x").exists()


@pytest.mark.parametrize("run_id", ["training-0123abcd", None])
def test_a_run_of_trackio_is_found_again_by_its_name(package, tmp_path, run_id):
    trackio = package("trackio")
    run = start(tmp_path / "training", "trackio", run_id)
    (project,), asked = trackio.init.call_args
    assert (project, asked["name"]) == ("words", run.id)
    assert asked["resume"] == ("must" if run_id else "never")
    assert asked["config"]["SOLVER.BASE_LR"] == 0.1
    assert run.id == run_id or re.fullmatch("training-[0-9a-f]{8}", run.id)
    run.log({"train/loss": 1.5}, 3)
    trackio.init.return_value.log.assert_called_once_with({"train/loss": 1.5}, step=3)
    run.close(True)
    trackio.init.return_value.finish.assert_called_once_with()


# Which lines are sent.


def trainer_at(iteration: int, *, is_main: bool = True, ended: bool = False) -> Any:
    progress = SimpleNamespace(
        iteration=iteration, training="this one", changes=["a change"], ended=ended
    )
    return SimpleNamespace(
        world=SimpleNamespace(is_main=is_main),
        progress=progress,
        schedule=SimpleNamespace(iterations=8),
    )


class Sent:
    """A run of a tracker that notes what it gets, and fails as often as is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started, self.ends = list[str | None](), list[bool]()
        self.points = list[tuple[int, dict[str, float]]]()
        self.failures = 0
        monkeypatch.setitem(tracker_module._RUNS, "mlflow", self.start)

    def start(self, recipe: Recipe, run_id: str | None) -> tracker_module._Run:
        self.started.append(run_id)
        return tracker_module._Run("run 7", self.log, self.ends.append)

    def log(self, values: dict[str, float], iteration: int) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no network")
        self.points.append((iteration, values))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    return Sent(monkeypatch)


def line(iteration: int, kind: str = "train", **values: object) -> str:
    times = {"epoch": iteration / 4, "seconds": 2.0 * iteration}
    return json.dumps({"type": kind, "iteration": iteration, **times, **values}) + "\n"


def write(folder: Path, *lines: str) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(lines)


def test_other_processes_than_the_first_send_nothing(sent, tmp_path):
    tracker = Tracker(recipe_of(tmp_path, "mlflow"), [4])
    tracker.before_train(trainer_at(0, is_main=False))
    tracker.after_step(trainer_at(4), None, None)
    assert sent.started == []
    assert not (tmp_path / "tracker.json").exists()


def test_lines_are_sent_with_their_times_when_a_checkpoint_is_due(sent, tmp_path):
    """A line that is being written is sent once it is whole."""
    write(tmp_path, line(1, loss=3.0), line(1, "val", top1=50.0))
    tracker = Tracker(recipe_of(tmp_path, "mlflow"), [4])
    tracker.before_train(trainer_at(0))
    assert sent.points == [
        (1, {"train/loss": 3.0, "epoch": 0.25, "seconds": 2.0}),
        (1, {"val/top1": 50.0, "epoch": 0.25, "seconds": 2.0}),
    ]
    whole = line(2, loss=2.0)
    write(tmp_path, whole[:9])
    tracker.after_step(trainer_at(3), None, None)
    write(tmp_path, whole[9:], line(3, loss=1.0)[:-1])
    tracker.after_step(trainer_at(3), None, None)
    assert len(sent.points) == 2
    tracker.after_step(trainer_at(4), None, None)
    assert [n for n, _ in sent.points] == [1, 1, 2]
    expected = {"run": "run 7", "training": ["this one", "a change"]}
    found = json.loads((tmp_path / "tracker.json").read_text())
    assert found == {**expected, "sent": {"train": 2, "val": 1}}


def test_a_point_that_fails_is_sent_again_and_its_line_is_not_passed(sent, tmp_path, caplog):
    write(tmp_path, line(1, loss=3.0), "not a record\n", line(2, loss=2.0), line(3, loss=1.0))
    sent.failures = 2
    tracker = Tracker(recipe_of(tmp_path, "mlflow"), [4])
    tracker.before_train(trainer_at(0))
    assert sent.points == []
    assert "sent again after the next checkpoint: no network" in caplog.text
    assert json.loads((tmp_path / "tracker.json").read_text())["sent"] == {}
    for _ in range(3):
        tracker.after_step(trainer_at(4), None, None)
    assert [n for n, _ in sent.points] == [1, 2, 3]


@pytest.mark.parametrize(
    ("training", "iteration", "run", "points"),
    [
        (["this one", "a change"], 2, "run 6", [3]),
        (["this one"], 2, None, [1, 2, 3]),  # before it accepted a change
        (["this one", "a change"], 0, None, [1, 2, 3]),  # begun anew
    ],
)
def test_a_run_is_continued_if_it_is_of_this_training(
    sent, tmp_path, training, iteration, run, points
):
    content = {"run": "run 6", "training": training, "sent": {"train": 2}}
    (tmp_path / "tracker.json").write_text(json.dumps(content))
    write(tmp_path, *(line(n, loss=1.0) for n in (1, 2, 3)))
    Tracker(recipe_of(tmp_path, "mlflow"), [4]).before_train(trainer_at(iteration))
    assert sent.started == [run]
    assert [n for n, _ in sent.points] == points


@pytest.mark.parametrize("content", ["{", "[]", '{"training": ["this one", "a change"]}', "null"])
def test_a_damaged_file_is_named_and_no_run_is_started(sent, tmp_path, content):
    (tmp_path / "tracker.json").write_text(content)
    write(tmp_path)
    with pytest.raises(UserError, match=r"tracker\.json is damaged\. Delete it"):
        Tracker(recipe_of(tmp_path, "mlflow"), [4]).before_train(trainer_at(2))
    assert sent.started == []


@pytest.mark.parametrize(
    ("iteration", "ended", "tested", "ends"),
    [
        (8, False, False, [True]),
        (5, False, False, [False]),  # interrupted
        (5, True, False, [True]),  # a hook has ended it
        (8, False, True, []),  # the test follows
        (5, False, True, [False]),
    ],
)
def test_the_run_is_closed_unless_a_test_follows(sent, tmp_path, iteration, ended, tested, ends):
    write(tmp_path, line(1, loss=3.0))
    recipe = recipe_of(tmp_path, "mlflow").replaced({"TEST.ENABLE": tested})
    tracker = Tracker(recipe, [])
    tracker.before_train(trainer_at(0))
    tracker.after_train(trainer_at(iteration, ended=ended))
    assert sent.ends == ends


@pytest.mark.parametrize(
    ("error", "is_unreachable"),
    [
        (OSError("refused"), True),
        (type("CommError", (Exception,), {})(), True),
        (ValueError("no such run"), False),
    ],
)
def test_a_network_error_is_found_below_others(error, is_unreachable):
    assert tracker_module._is_unreachable(error) is is_unreachable
    cause, context = RuntimeError(), RuntimeError()
    cause.__cause__ = error
    context.__context__ = error
    assert tracker_module._is_unreachable(cause) is is_unreachable
    assert tracker_module._is_unreachable(context) is is_unreachable
