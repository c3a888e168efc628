"""Trackers get each point of a killed and resumed training once."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from multigrid import ScheduleStep, Shape, SteppedRate, make_schedule
from slowfast_patches.config.recipe import Recipe, default_recipe
from slowfast_patches.extras.trackers import hook as tracker_module
from slowfast_patches.extras.trackers.hook import Tracker
from slowfast_patches.train.hooks import Validate
from slowfast_patches.train.record.log_metrics import LogMetrics
from slowfast_patches.train.step import Outcome
from slowfast_patches.utils.errors import UserError
from tests.conftest import Folder
from tests.slowfast_patches.train.conftest import At, die, train_without_model

Point = tuple[str, int, float]
PLAN = make_schedule(Shape(8, 8, 32), 8, SteppedRate((12.0,), (0.1,)), cycles=None, bn_group_size=4)
"""12 iterations."""
SAVED = (4, 8, 12)
LOG_PERIOD = 1


def recipe_of(folder: Path, name: str) -> Recipe:
    keys = {"TRACKER.NAME": name, "TRACKER.PROJECT": "words", "LOG_PERIOD": LOG_PERIOD}
    keys["TEST.ENABLE"] = False
    return default_recipe().replaced({"OUTPUT_DIR": str(folder)} | keys)


class FakeRuns:
    """A tracker that fails at one of the points."""

    def __init__(self, fails_at: int, *, is_empty: bool = False) -> None:
        self.is_empty = is_empty
        self.fails_at, self.ids, self.ends = fails_at, list[str | None](), list[bool]()
        self.points = list[Point]()

    def start(self, recipe: Recipe, run_id: str | None) -> tracker_module._Run:
        self.ids.append(run_id)
        return tracker_module._Run("run 1", self.log, self.ends.append, self.is_empty)

    def log(self, values: dict[str, float], iteration: int) -> None:
        if iteration == self.fails_at:
            self.fails_at = -1
            raise ConnectionError("no network")
        (name,) = {"train/loss", "val/top1", "test/top1"} & values.keys()
        self.points.append((name, iteration, values[name]))


def take_step(step: ScheduleStep) -> Outcome:
    rows = torch.eye(3)[[0] * 8]
    return Outcome(torch.tensor(1.0 / (step.iteration + 1)), rows, rows)


def train(folder: Path, start: int, stop: int, changes: Sequence[str] = ()) -> None:
    """Train from an iteration on, validate and save after each fourth, and die after one."""
    recipe = recipe_of(folder, "mlflow")
    log = LogMetrics(recipe, ())
    validate = Validate(SAVED, lambda s: {"top1": s.iteration + 1.0}, log.log_evaluation)
    hooks = [log, At(stop, die), validate, Tracker(recipe, SAVED)]
    train_without_model(PLAN, hooks, start, take_step, evaluated=SAVED, changes=changes)


@pytest.mark.parametrize("fails_at", [0, 3, 6, 10])
def test_each_point_is_sent_once_and_one_that_fails_is_sent_again(tmp_path, monkeypatch, fails_at):
    runs = FakeRuns(fails_at)
    monkeypatch.setitem(tracker_module._RUNS, "mlflow", runs.start)
    for start, stop in ((0, 6), (4, 9), (8, 0)):
        train(tmp_path, start, stop)
    losses = [("train/loss", n, pytest.approx(1 / n, abs=1e-6)) for n in range(1, 13)]
    expected = losses + [("val/top1", n, float(n)) for n in SAVED]
    assert sorted(runs.points) == expected
    assert runs.ids[:3] == [None, "run 1", "run 1"]
    assert runs.ends[-1]


def test_with_another_log_period_later_points_are_sent_and_none_twice(tmp_path, monkeypatch):
    """The first attempt logs each iteration until the seventh, and saves after the fourth."""
    runs = FakeRuns(-1)
    monkeypatch.setitem(tracker_module._RUNS, "mlflow", runs.start)
    train(tmp_path, 0, 6)
    monkeypatch.setattr(f"{__name__}.LOG_PERIOD", 3)
    train(tmp_path, 4, 0)
    sent = [iteration for name, iteration, _ in runs.points if name == "train/loss"]
    assert sent == sorted({*range(1, 7), 9, 12})


def test_a_training_that_accepts_a_change_gets_a_run_with_all_its_points(tmp_path, monkeypatch):
    runs = FakeRuns(-1)
    monkeypatch.setitem(tracker_module._RUNS, "mlflow", runs.start)
    train(tmp_path, 0, 6)
    runs.points.clear()
    train(tmp_path, 4, 0, changes=["after iteration 4: SOLVER.BASE_LR 0.1 there, 1 here"])
    assert runs.ids == [None, None]
    assert [n for name, n, _ in runs.points if name == "train/loss"] == list(range(1, 13))


def test_a_run_that_cannot_be_continued_gets_all_points_again(tmp_path, monkeypatch):
    runs = FakeRuns(-1, is_empty=True)
    monkeypatch.setitem(tracker_module._RUNS, "mlflow", runs.start)
    train(tmp_path, 0, 6)
    runs.points.clear()
    train(tmp_path, 8, 0)
    assert [n for name, n, _ in runs.points if name == "train/loss"] == [
        *range(1, 7),
        *range(9, 13),
    ]


def test_the_test_is_sent_once_and_then_the_run_is_closed(tmp_path, monkeypatch):
    """Also if a finished training is started again, which repeats the test."""
    runs = FakeRuns(-1)
    monkeypatch.setitem(tracker_module._RUNS, "mlflow", runs.start)
    for start in (0, 12):
        recipe = recipe_of(tmp_path, "mlflow").replaced({"TEST.ENABLE": True})
        log = LogMetrics(recipe, ())
        trainer = train_without_model(
            PLAN, [log, Tracker(recipe, SAVED)], start, take_step, evaluated=()
        )
        assert len(runs.ends) == (start > 0)
        for hook in trainer.hooks:
            hook.after_test(trainer, {"top1": 75.0})
    assert runs.points[-1] == ("test/top1", 12, 75.0)
    assert [name for name, *_ in runs.points].count("test/top1") == 1
    assert runs.ends == [True, True]
    lines = (tmp_path / "metrics.jsonl").read_text()
    assert lines.count('"type": "test"') == 1


@pytest.mark.parametrize(
    ("cause", "has_run", "advice"),
    [
        (ConnectionError("refused"), True, "Check that the server runs"),
        (TimeoutError("no answer"), False, "MLFLOW_TRACKING_URI"),
        (ValueError("no such run"), True, "If the run run 1 was deleted, delete"),
        (ValueError("no such project"), False, "To train without a tracker"),
    ],
)
def test_the_advice_fits_the_cause(tmp_path, monkeypatch, cause, has_run, advice):
    """The packages hide the cause behind an error of their own."""
    runs = FakeRuns(-1)
    monkeypatch.setitem(tracker_module._RUNS, "mlflow", runs.start)
    if has_run:
        train(tmp_path, 0, 6)

    def fail(*_: object) -> None:
        raise RuntimeError("the tracker has a problem") from cause

    monkeypatch.setitem(tracker_module._RUNS, "mlflow", fail)
    with pytest.raises(UserError, match="the tracker has a problem") as failed:
        train(tmp_path, 4 if has_run else 0, 0)
    assert advice in str(failed.value)
    assert ("delete" in str(failed.value)) == ("was deleted" in advice)


# The packages: one point of a new run and, but for wandb, one of the run that is continued.


def log_twice(folder: Path, name: str) -> None:
    first = tracker_module._RUNS[name](recipe_of(folder, name), None)
    first.log({"train/loss": 1.0}, 1)
    first.close(False)
    second = tracker_module._RUNS[name](recipe_of(folder, name), first.id)
    assert second.id == first.id
    second.log({"train/loss": 0.5}, 2)
    second.close(True)


@pytest.mark.slow("imports a tracker")
def test_mlflow_continues_a_run(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    log_twice(tmp_path, "mlflow")
    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("words").experiment_id])
    assert (run.info.status, run.data.params["SOLVER.BASE_LR"]) == ("FINISHED", "0.1")
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted((point.step, point.value) for point in history) == [(1, 1.0), (2, 0.5)]


@pytest.mark.slow("imports a tracker")
def test_trackio_continues_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # read at the first import only
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    log_twice(tmp_path, "trackio")
    (run,) = trackio.Api().runs("words")
    assert run.config["SOLVER.BASE_LR"] == 0.1
    rows = SQLiteStorage.get_logs("words", run.name)
    assert [(row["step"], row["train/loss"]) for row in rows] == [(1, 1.0), (2, 0.5)]


@pytest.mark.slow("waits for a server")
def test_a_dead_server_of_mlflow_is_noticed_in_seconds(tmp_path, monkeypatch):
    """MLflow itself retries for four minutes."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    for name in ("MAX_RETRIES", "TIMEOUT"):
        monkeypatch.delenv(f"MLFLOW_HTTP_REQUEST_{name}", raising=False)
    start = time.monotonic()
    with pytest.raises(UserError, match="Check that the server runs"):
        train(tmp_path, 0, 1)
    assert time.monotonic() - start < 30


@pytest.mark.slow("starts a tracker's process")
def test_wandb_offline_leaves_one_run_with_all_points(tmp_path, monkeypatch):
    """Offline, wandb cannot continue a run, and of two folders only one would be shown."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "wandb" / "offline-run-20260101_000000-another").mkdir(parents=True)
    first = tracker_module._RUNS["wandb"](recipe_of(tmp_path, "wandb"), None)
    first.log({"train/loss": 1.0}, 1)
    first.close(False)
    time.sleep(1.1)  # the names of the folders have whole seconds
    second = tracker_module._RUNS["wandb"](recipe_of(tmp_path, "wandb"), first.id)
    assert (second.id, second.is_empty) == (first.id, True)
    second.close(True)
    names = [path.name for path in (tmp_path / "wandb").glob("offline-run-*")]
    assert sorted(name.rpartition("-")[2] for name in names) == sorted(["another", first.id])


@pytest.mark.slow("starts a tracker's process")
def test_wandb_has_a_run(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tracker_module._RUNS["wandb"](recipe_of(tmp_path, "wandb"), "id of the first run")
    run.log({"train/loss": 0.5}, 2)
    summary = wandb.run.summary
    assert (run.id, summary["iteration"], summary["train/loss"]) == ("id of the first run", 2, 0.5)
    run.close(True)


@pytest.mark.slow("trains for seconds")
def test_a_whole_training_sends_its_lines(train, tmp_path, monkeypatch):
    runs = FakeRuns(fails_at=3)
    monkeypatch.setitem(tracker_module._RUNS, "mlflow", runs.start)
    monkeypatch.setitem(sys.modules, "mlflow", tracker_module)  # its import takes seconds
    short = ("SOLVER.MAX_EPOCH", 2, "SOLVER.STEPS", [0, 1], "MULTIGRID.LONG_CYCLE", False)
    train(tmp_path, *short, "TRACKER.NAME", "mlflow", "TEST.ENABLE", False)
    sent = [(n, value) for name, n, value in runs.points if name == "train/loss"]
    written = [(r["iteration"], r["loss"]) for r in Folder(tmp_path).metrics()]
    assert sent == written != []
