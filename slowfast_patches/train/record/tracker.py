"""Send the metrics of a training to MLflow, Weights & Biases or Trackio."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from multigrid import ScheduleStep
from slowfast_patches.config.recipe import Recipe, values_by_key
from slowfast_patches.train.hooks import is_due
from slowfast_patches.train.record.log_metrics import curves
from slowfast_patches.train.step import Outcome
from slowfast_patches.train.trainer import Hook, Trainer
from slowfast_patches.utils.files import write_text

logger = logging.getLogger(__name__)


def check_tracker(recipe: Recipe) -> None:
    """Check that the package of TRAIN.TRACKER can be imported.

    Raises:
        ValueError: It cannot.
    """
    if name := recipe.train.tracker:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ValueError(
                f"TRAIN.TRACKER {name} needs the package {name} ({error}). Run pip install {name}, "
                'or set TRAIN.TRACKER "".'
            ) from error


class Tracker(Hook):
    """Send the lines of metrics.jsonl to the run of an experiment tracker.

    Trackers cannot delete points, but a killed training repeats the iterations after its last
    checkpoint. So lines are only sent when a checkpoint covers all of them. The file tracker.json
    in OUTPUT_DIR stores the ID of the tracker's run and which lines were sent. If sending fails,
    the log warns, and the lines are sent next time.

    Args:
        recipe: The recipe of the training.
        after: Numbers of finished iterations after which a checkpoint is saved.
    """

    def __init__(self, recipe: Recipe, after: Collection[int]) -> None:
        folder = Path(recipe.output_dir)
        self._recipe = recipe
        self._after = after
        self._lines = folder / "metrics.jsonl"
        self._file = folder / "tracker.json"
        self._run: _Run | None = None

    def before_train(self, trainer: Trainer) -> None:
        """Create the run of the tracker, or continue the one that tracker.json names.

        Raises:
            ValueError: The run of the tracker cannot be created or continued.
        """
        if not trainer.world.is_main:
            return
        name = self._recipe.train.tracker
        stored: dict[str, Any] = {}
        if trainer.progress.iteration > 0 and self._file.exists():
            stored = json.loads(self._file.read_text())
        is_new = stored.get("tracker") != name
        new: dict[str, Any] = {"tracker": name, "train": 0, "val": 0}
        self._state = new if is_new else stored
        try:
            self._run = _RUNS[name](self._recipe, None if is_new else stored["run"])
        except Exception as error:  # each package has its own error types
            raise ValueError(
                f"TRAIN.TRACKER {name} cannot be started: {error}. If the tracker's run was "
                f"deleted, delete {self._file} to create a new one."
            ) from error
        self._state["run"] = self._run.id
        self._send(self._run)

    def after_step(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        if self._run is not None and is_due(trainer, self._after):
            self._send(self._run)

    def after_train(self, trainer: Trainer) -> None:
        if self._run is None:
            return
        finished = trainer.progress.iteration == trainer.schedule.iterations
        if finished:
            self._send(self._run)
        try:
            self._run.close(finished)
        except Exception as error:  # must not replace the error that ended the training
            logger.warning("TRAIN.TRACKER: ending the run of the tracker failed: %s", error)

    def _send(self, run: _Run) -> None:
        """Send the lines that were not sent yet."""
        try:
            for line in self._lines.read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                kind, iteration = record["type"], record["iteration"]
                if (values := curves(record)) and iteration > self._state[kind]:
                    axes = {"epoch": record["epoch"], "seconds": record["seconds"]}
                    run.log(values | axes, iteration)
                    self._state[kind] = iteration
        except Exception as error:
            logger.warning("TRAIN.TRACKER: sending metrics failed, and is tried again: %s", error)
        write_text(self._file, json.dumps(self._state))


class _Run(NamedTuple):
    """Run of an experiment tracker.

    Attributes:
        id: Text with which the tracker finds the run again.
        log: Function to call with the values of an iteration, and the number of the iteration.
        close: Function to call at the end with whether the training has finished.
    """

    id: str
    log: Callable[[dict[str, float], int], object]
    close: Callable[[bool], object]


def _start_mlflow(recipe: Recipe, run_id: str | None) -> _Run:
    import mlflow

    mlflow.set_experiment(recipe.train.tracker_project)
    info = mlflow.start_run(run_id, run_name=None if run_id else _name(recipe)).info
    if run_id is None:
        # MLflow takes at most 100 parameters at a time, of at most 6,000 characters.
        params = [(key, str(value)[:6000]) for key, value in values_by_key(recipe).items()]
        for first in range(0, len(params), 100):
            mlflow.log_params(dict(params[first : first + 100]))
        mlflow.log_artifact(_picture(recipe))

    def log(values: dict[str, float], iteration: int) -> None:
        # MLflow ignores a point that it already has, if its time is the same, too.
        time = info.start_time + round(1000 * values["seconds"])
        mlflow.log_metrics(values, iteration, timestamp=time)

    return _Run(info.run_id, log, lambda done: mlflow.end_run("FINISHED" if done else "KILLED"))


def _start_wandb(recipe: Recipe, run_id: str | None) -> _Run:
    import wandb

    run = wandb.init(
        project=recipe.train.tracker_project,
        name=_name(recipe),
        id=run_id or uuid4().hex,
        resume="allow",
        config=values_by_key(recipe),
        dir=recipe.output_dir,
        # By default, a killed run loses its last 15 seconds offline.
        settings=wandb.Settings(x_transaction_log_flush_interval=1.0),
    )
    # Steps of wandb must rise, but a training and a validation may share an iteration.
    run.define_metric("*", step_metric="iteration")
    if run_id is None:
        run.log({"plan": wandb.Image(_picture(recipe))})
    return _Run(
        run.id,
        lambda values, iteration: run.log({**values, "iteration": iteration}),
        lambda done: run.finish(exit_code=int(not done)),
    )


def _start_trackio(recipe: Recipe, run_id: str | None) -> _Run:
    import trackio

    name = run_id or f"{_name(recipe)}-{uuid4().hex[:8]}"
    run: Any = trackio.init(
        recipe.train.tracker_project,
        name=name,
        config=values_by_key(recipe),
        resume="must" if run_id else "never",
    )
    if run_id is None:
        run.log({"plan": trackio.Image(_picture(recipe))}, step=0)
    return _Run(
        name, lambda values, iteration: run.log(values, step=iteration), lambda _: run.finish()
    )


def _name(recipe: Recipe) -> str:
    return Path(recipe.output_dir).name


def _picture(recipe: Recipe) -> str:
    return str(Path(recipe.output_dir, "plan.png"))


_RUNS = {"mlflow": _start_mlflow, "wandb": _start_wandb, "trackio": _start_trackio}
"""Function for each value of TRAIN.TRACKER. It continues the run with the given ID, or creates a
new run with the recipe and the picture of the plan."""
