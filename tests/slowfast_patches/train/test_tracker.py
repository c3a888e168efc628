"""Trackers get each point of a killed and resumed training once."""

import importlib
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from multigrid import ScheduleStep, Shape, SteppedRate, make_schedule
from slowfast_patches.config.recipe import Recipe, default_recipe
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.train.hooks import Validate
from slowfast_patches.train.record import tracker as tracker_module
from slowfast_patches.train.record.log_metrics import LogMetrics
from slowfast_patches.train.record.tracker import Tracker
from slowfast_patches.train.step import Outcome
from slowfast_patches.train.trainer import Progress, Trainer
from slowfast_patches.utils.distributed import World
from tests.slowfast_patches.train.conftest import At

Point = tuple[str, int, float]


def recipe_of(folder: Path, name: str) -> Recipe:
    keys = {"TRAIN.TRACKER": name, "TRAIN.TRACKER_PROJECT": "words", "LOG_PERIOD": 1}
    return default_recipe().replaced({"OUTPUT_DIR": str(folder)} | keys)


class FakeRuns:
    """A tracker that fails at one of the points."""

    def __init__(self, fails_at: int) -> None:
        self.fails_at, self.ids, self.ends = fails_at, list[str | None](), list[bool]()
        self.points = list[Point]()

    def start(self, recipe: Recipe, run_id: str | None) -> tracker_module._Run:
        self.ids.append(run_id)
        return tracker_module._Run("run 1", self.log, self.ends.append)

    def log(self, values: dict[str, float], iteration: int) -> None:
        if iteration == self.fails_at:
            self.fails_at = -1
            raise ConnectionError("no network")
        name = "val/top1" if "val/top1" in values else "train/loss"
        self.points.append((name, iteration, values[name]))


def train(folder: Path, start: int, stop: int) -> None:
    """Train from an iteration on, validate and save after each fourth, and die after one."""
    rate = SteppedRate((12.0,), (0.1,))
    plan = make_schedule(Shape(8, 8, 32), 8, rate, cycles=None, bn_size=4)
    recipe = recipe_of(folder, "mlflow")

    def take_step(step: ScheduleStep, *_: object) -> Outcome:
        rows = torch.eye(3)[[0] * 8]
        return Outcome(torch.tensor(1.0 / (step.iteration + 1)), rows, rows)

    def die(trainer: Trainer) -> None:
        raise SystemExit

    log, world = LogMetrics(recipe, ()), World(0, 1, torch.device("cpu"))
    saved = (4, 8, 12)
    validate = Validate(saved, lambda s: {"top1": s.iteration + 1.0}, log.log_evaluation)
    hooks = [log, At(stop, die), validate, Tracker(recipe, saved)]
    trainer = Trainer(
        *(take_step, plan, lambda start: ({"iteration": i} for i in range(start, 12)), hooks),
        world=world,
        stop=StopRequest(world),
    )
    evaluations = [{"iteration": done} for done in saved if done <= start]
    trainer.progress = Progress(iteration=start, evaluations=evaluations)
    with suppress(SystemExit):
        trainer.train()


@pytest.mark.parametrize("fails_at", [0, 3, 6, 10])
def test_each_point_is_sent_once_and_one_that_fails_is_sent_again(tmp_path, monkeypatch, fails_at):
    runs = FakeRuns(fails_at)
    monkeypatch.setitem(tracker_module._RUNS, "mlflow", runs.start)
    for start, stop in ((0, 6), (4, 9), (8, 0)):
        train(tmp_path, start, stop)
    losses = [("train/loss", n, pytest.approx(1 / n, abs=1e-6)) for n in range(1, 13)]
    expected = losses + [("val/top1", n, float(n)) for n in (4, 8, 12)]
    assert sorted(runs.points) == expected
    assert runs.ids[:3] == [None, "run 1", "run 1"]
    assert runs.ends[-1]


def points_of_mlflow(folder: Path) -> list[Point]:
    from mlflow import MlflowClient

    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("words").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", folder.name)
    assert run.data.params["SOLVER.BASE_LR"] == "0.1"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    return sorted(("train/loss", point.step, point.value) for point in history)


def points_of_trackio(folder: Path) -> list[Point]:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = trackio.Api().runs("words")
    assert run.config["SOLVER.BASE_LR"] == 0.1
    rows = SQLiteStorage.get_logs("words", run.name)
    return sorted(("train/loss", row["step"], row["train/loss"]) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlflow", "trackio", "wandb"])
def test_the_packages_continue_a_run(tmp_path, monkeypatch, name):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read at the first import only
    monkeypatch.chdir(tmp_path)
    ids, kept = list[str | None]([None]), list[Point]()
    for iteration in (1, 2):
        run = tracker_module._RUNS[name](recipe_of(tmp_path, name), ids[-1])
        run.log({"train/loss": 1 / iteration}, iteration)
        if name == "wandb":
            summary = importlib.import_module("wandb").run.summary
            kept.append(("train/loss", summary["iteration"], summary["train/loss"]))
        run.close(iteration == 2)
        ids.append(run.id)
    assert ids[1] == ids[2]
    if name != "wandb":
        kept = globals()[f"points_of_{name}"](tmp_path)
    assert kept == [("train/loss", 1, 1.0), ("train/loss", 2, 0.5)]
