"""Trackers get each point of a killed and resumed training once: the real packages, offline."""

import importlib
import json
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from multigrid import ScheduleStep, Shape, SteppedRate, make_schedule
from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.train.hooks import Validate
from slowfast_patches.train.record.log_metrics import LogMetrics
from slowfast_patches.train.record.tracker import Tracker, check_tracker
from slowfast_patches.train.step import Outcome
from slowfast_patches.train.trainer import Progress, Trainer
from slowfast_patches.utils.distributed import World
from tests.slowfast_patches.train.conftest import At, hooked

pytestmark = pytest.mark.slow

Points = dict[str, list[tuple[int, float]]]


def attempt(folder: Path, tracker: str, start: int, stop: int, saved: tuple[int, ...]) -> None:
    """Train from an iteration on, with a checkpoint after some iterations, and die after one."""
    rate = SteppedRate((12.0,), (0.1,))
    plan = make_schedule(Shape(8, 8, 32), 8, rate, cycles=None, bn_size=4)
    keys = {"OUTPUT_DIR": str(folder), "TRAIN.TRACKER": tracker, "TRAIN.TRACKER_PROJECT": "words"}
    keys |= {"LOG_PERIOD": 1}
    recipe = default_recipe().replaced(keys)

    def step_(step: ScheduleStep, *_: object) -> Outcome:
        rows = torch.eye(3)[[0] * 8]
        return Outcome(torch.tensor(1.0 / (step.iteration + 1)), rows, rows)

    def die(trainer: Trainer) -> None:
        time.sleep(2)  # wandb writes in the background
        os._exit(0)  # as if killed: nothing is flushed or closed

    log, world = LogMetrics(recipe, (), "advice"), World(0, 1, torch.device("cpu"))
    validate = Validate(saved, lambda s: {"top1": s.iteration + 1.0}, log.log_evaluation)
    hooks = [log, Tracker(recipe, saved), validate, At(stop, die)]
    trainer = Trainer(
        *(step_, plan, lambda start: ({"iteration": i} for i in range(start, 12)), hooks),
        world=world,
        stop=StopRequest(world),
    )
    evaluations = [{"iteration": done} for done in saved if done <= start]
    trainer.progress = Progress(iteration=start, evaluations=evaluations)
    trainer.train()


def make_picture(folder: Path) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8)).save(folder / "plan.png")


def killed_and_resumed(folder: Path, tracker: str) -> None:
    """Save after 4, 8 and 12 iterations, die after 6, and go on from 4."""
    importlib.import_module(tracker)  # once for both attempts, which are forks
    make_picture(folder)
    for start, stop in ((0, 6), (4, 0)):
        if (child := os.fork()) == 0:
            status = 1
            try:
                attempt(folder, tracker, start, stop, saved=(4, 8, 12))
                time.sleep(2)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


def of_mlflow(folder: Path) -> tuple[Points, dict, bool]:
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("words")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == folder.name
    points = {
        name: sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, name))
        for name in run.data.metrics
    }
    pictures = [file.path for file in client.list_artifacts(run.info.run_id)]
    return points, run.data.params, pictures == ["plan.png"]


def records_of_leveldb(log: bytes) -> Iterator[bytes]:
    """Yield the records of a file of wandb: LevelDB's log format after a header of 7 bytes."""
    whole, at = b"", 7
    while at + 7 <= len(log):
        if (left := 32768 - at % 32768) < 7 or log[at + 6] == 0:  # the rest of the block is empty
            at += left
            continue
        size, kind = struct.unpack_from("<HB", log, at + 4)
        whole += log[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield whole
            whole = b""


def of_wandb(folder: Path) -> tuple[Points, dict, bool]:
    from wandb.proto.wandb_internal_pb2 import Record

    points, config, ids, pictures = Points(), {}, set(), 0
    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        for record in map(Record.FromString, records_of_leveldb(file.read_bytes())):
            if record.HasField("run"):
                ids.add((record.run.run_id, record.run.project, record.run.display_name))
                config |= {i.key: str(json.loads(i.value_json)) for i in record.run.config.update}
            row = {
                i.key or "/".join(i.nested_key): json.loads(i.value_json)
                for i in record.history.item
            }
            pictures += any(name.startswith("plan") for name in row)
            for name in row if "iteration" in row else ():
                if "/" in name or name in ("epoch", "seconds"):
                    points.setdefault(name, []).append((row["iteration"], row[name]))
    ((_, project, name),) = ids
    assert (project, name) == ("words", folder.name)
    return points, config, pictures == 1


def of_trackio(folder: Path, project: str) -> tuple[Points, dict, bool]:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = trackio.Api().runs(project)
    assert run.name.startswith(f"{folder.name}-")
    rows = SQLiteStorage.get_logs(project, run.name)
    points = Points()
    for row in rows:
        for name, value in row.items():
            points.setdefault(name, []).append((row["step"], value))
    recipe = {key: str(value) for key, value in (run.config or {}).items()}
    return points, recipe, len(points["plan"]) == 1


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_killed_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "SLOWFAST"
    folder.mkdir()
    killed_and_resumed(folder, tracker)
    points, recipe, has_picture = globals()[f"of_{tracker}"](folder)
    for name in ("train/loss", "train/lr", "shape/frames"):
        assert [step for step, _ in points[name]] == list(range(1, 13))
    assert points["train/loss"] == [(n, pytest.approx(1 / n, abs=1e-6)) for n in range(1, 13)]
    assert points["val/top1"] == [(n, n) for n in (4, 8, 12)]
    assert recipe["SOLVER.BASE_LR"] == "0.1"
    assert has_picture


def test_a_whole_run_that_dies_between_checkpoints(
    train: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: type
):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read at the first import only
    folder = tmp_path / "SLOWFAST"
    folder.mkdir()
    make_picture(folder)

    def die(trainer: Trainer) -> None:
        raise SystemExit

    keys = ("TRAIN.TRACKER", "trackio", "TRAIN.TRACKER_PROJECT", "whole", "TEST.ENABLE", False)
    with hooked(At(7, die)), pytest.raises(SystemExit):
        train(folder, *keys)
    assert opened(folder).checkpoint["iteration"] < 7
    points, _, _ = of_trackio(train(folder, *keys), "whole")
    for name, kind in (("loss", "train"), ("lr", "train"), ("top1", "val")):
        records = opened(folder).metrics(kind)
        assert points[f"{kind}/{name}"] == [(r["iteration"], r[name]) for r in records]


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    recipe = default_recipe().replaced({"TRAIN.TRACKER": "trackio"})
    with pytest.raises(ValueError, match=r"TRAIN.TRACKER trackio needs .* pip install trackio"):
        check_tracker(recipe)
