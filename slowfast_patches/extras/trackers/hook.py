"""Send the metrics of a training to MLflow, Weights & Biases or Trackio."""

from __future__ import annotations

import glob
import importlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from multigrid import ScheduleStep
from slowfast_patches.config.recipe import Recipe, values_by_key
from slowfast_patches.extras.trackers.keys import TrackerKeys
from slowfast_patches.train.record.log_metrics import curves, record_of
from slowfast_patches.train.step import Outcome
from slowfast_patches.train.trainer import Hook, Trainer
from slowfast_patches.utils.errors import UserError, mistake_in
from slowfast_patches.utils.files import write_text

logger = logging.getLogger(__name__)


def check_tracker(recipe: Recipe) -> None:
    """Raise ValueError if the package of TRACKER.NAME cannot be imported."""
    name = TrackerKeys.of(recipe).name
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"TRACKER.NAME {name} needs the package {name} ({error}). Run pip install {name}."
        ) from error


class Tracker(Hook):
    """Send the lines of metrics.jsonl to the run of an experiment tracker.

    The file tracker.json in OUTPUT_DIR stores the ID of the tracker's run, the training that it
    belongs to, and the last iteration sent of each type of line. A resumed training writes the
    lines after its checkpoint again. Lines of iterations that were sent before are skipped, because
    trackers cannot delete points. A training that resumes with other learning rates or other
    accepted changes gets a new run, which has all its points. If sending fails, the log warns, and
    the lines are sent next time.

    Args:
        recipe: The recipe of the training.
        after: Numbers of finished iterations after which to send the new lines.
    """

    def __init__(self, recipe: Recipe, after: Collection[int]) -> None:
        folder = Path(recipe.output_dir)
        self._recipe = recipe
        self._after = after
        self._lines = folder / "metrics.jsonl"
        self._file = folder / "tracker.json"
        self._sent = dict[str, int]()
        self._offset = 0
        self._training: list[str] = []
        self._run: _Run | None = None

    def before_train(self, trainer: Trainer) -> None:
        """Create the run of the tracker. A resumed training continues the run in tracker.json.

        Raises:
            ValueError: The run of the tracker cannot be created or continued.
        """
        if not trainer.world.is_main:
            return
        progress = trainer.progress
        self._training = [progress.training, *progress.changes]
        stored: dict[str, Any] = {"run": None, "sent": {}}
        if progress.iteration > 0 and self._file.exists():
            wrong = (OSError, ValueError, LookupError, TypeError)
            with mistake_in(f"{self._file} is damaged. Delete it", *wrong):
                content = json.loads(self._file.read_text())
                if content["training"] == self._training:
                    stored = {"run": content["run"], "sent": dict(content["sent"])}
        self._sent = stored["sent"]
        name = TrackerKeys.of(self._recipe).name
        try:
            self._run = _RUNS[name](self._recipe, stored["run"])
        except Exception as error:  # each package has its own error types
            raise UserError(
                f"TRACKER.NAME {name} cannot be started: {error}. {self._advice(error, stored)}"
            ) from error
        if self._run.is_empty:
            self._sent = {}
        self._send()

    def _advice(self, error: BaseException, stored: Mapping[str, Any]) -> str:
        """Return advice on what to do about an error of the tracker's package."""
        name = TrackerKeys.of(self._recipe).name
        if _is_unreachable(error):
            return (
                f"Check that the server runs and that its address is right ({_ADDRESSES[name]}). "
                "To train without a tracker, set TRACKER.NAME ''."
            )
        if stored["run"] is None:
            return "To train without a tracker, set TRACKER.NAME ''."
        return f"If the run {stored['run']} was deleted, delete {self._file} to create a new one."

    def after_step(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        if trainer.progress.iteration in self._after:
            self._send()

    def after_train(self, trainer: Trainer) -> None:
        """Send the last lines, and close the tracker's run unless a test follows."""
        progress = trainer.progress
        is_complete = progress.ended or progress.iteration == trainer.schedule.iterations
        is_tested = is_complete and self._recipe.test.enable
        self._send(None if is_tested else is_complete)

    def after_test(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Send the metrics of the test, and close the tracker's run."""
        self._send(finished=True)

    def _send(self, finished: bool | None = None) -> None:
        """Send the lines that were not sent yet. At the end, also close the tracker's run.

        Args:
            finished: Whether the training is complete. None before the end.
        """
        if self._run is None:
            return
        with self._lines.open("rb") as file:
            file.seek(self._offset)
            lines = [line for line in file if line.endswith(b"\n")]
        points = [(line, record_of(line)) for line in lines]
        try:
            for line, record in points:
                if record and record["iteration"] > self._sent.get(record["type"], 0):
                    if values := curves(record):
                        axes = {"epoch": record["epoch"], "seconds": record["seconds"]}
                        self._run.log(values | axes, record["iteration"])
                    self._sent[record["type"]] = record["iteration"]
                self._offset += len(line)
            if finished is not None:
                self._run.close(finished)
        except Exception as error:
            logger.warning(
                "TRACKER.NAME: metrics could not be sent, and are sent again after the next "
                "checkpoint: %s",
                error,
            )
        content = {"run": self._run.id, "training": self._training, "sent": self._sent}
        write_text(self._file, json.dumps(content))


class _Run(NamedTuple):
    """Run of an experiment tracker.

    Attributes:
        id: Text with which the tracker finds the run again.
        log: Function to call with the values of an iteration, and the number of the iteration.
        close: Function to call at the end with whether the training is complete.
        is_empty: Whether the run has no points, so all of them must be sent.
    """

    id: str
    log: Callable[[dict[str, float], int], object]
    close: Callable[[bool], object]
    is_empty: bool = False


_ADDRESSES = {
    "mlflow": "MLFLOW_TRACKING_URI",
    "wandb": "WANDB_BASE_URL; WANDB_MODE offline needs no server",
    "trackio": "TRACKIO_SPACE_ID",
}
"""Environment variables with the address of the server of each tracker."""
_PATIENCE = 20
"""Seconds after which a server counts as unreachable."""


def _is_unreachable(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is a network error."""
    while error is not None:
        # wandb has an error class of its own, which does not name its cause.
        if isinstance(error, OSError) or type(error).__name__ == "CommError":
            return True
        error = error.__cause__ or error.__context__
    return False


def _start_mlflow(recipe: Recipe, run_id: str | None) -> _Run:
    # Values that cannot be sent are sent after the next checkpoint.
    # MLflow itself would retry for minutes, and the training would wait.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(_PATIENCE))
    import mlflow

    mlflow.set_experiment(TrackerKeys.of(recipe).project)
    run = mlflow.start_run(run_id, run_name=Path(recipe.output_dir).name)
    if run_id is None:
        mlflow.log_params(values_by_key(recipe))
    return _Run(
        run.info.run_id,
        mlflow.log_metrics,
        lambda finished: mlflow.end_run("FINISHED" if finished else "KILLED"),
    )


def _start_wandb(recipe: Recipe, run_id: str | None) -> _Run:
    import wandb

    run = wandb.init(
        project=TrackerKeys.of(recipe).project,
        name=Path(recipe.output_dir).name,
        id=run_id,
        resume="allow",
        config=values_by_key(recipe),
        dir=recipe.output_dir,
        # By default, a killed run loses its last 15 seconds offline.
        settings=wandb.Settings(x_transaction_log_flush_interval=1.0, init_timeout=_PATIENCE),
    )
    if run.offline and run_id:
        _delete_older(Path(run.settings.sync_dir), run_id)
    # Steps of wandb must rise, but a training and a validation may share an iteration.
    run.define_metric("*", step_metric="iteration")
    return _Run(
        run.id,
        lambda values, iteration: run.log({**values, "iteration": iteration}),
        lambda finished: run.finish(exit_code=int(not finished)),
        is_empty=bool(run.offline),
    )


def _delete_older(folder: Path, run_id: str) -> None:
    """Delete the other offline folders of a run of wandb.

    Offline, wandb cannot continue a run. `wandb sync` would show the points of one of the folders
    only, so the new folder gets all points.
    """
    for other in folder.parent.glob(f"offline-run-*-{glob.escape(run_id)}"):
        if other.resolve() != folder.resolve():
            shutil.rmtree(other, ignore_errors=True)


def _start_trackio(recipe: Recipe, run_id: str | None) -> _Run:
    import trackio

    name = run_id or f"{Path(recipe.output_dir).name}-{uuid4().hex[:8]}"
    run: Any = trackio.init(
        TrackerKeys.of(recipe).project,
        name=name,
        config=values_by_key(recipe),
        resume="must" if run_id else "never",
    )
    return _Run(
        name, lambda values, iteration: run.log(values, step=iteration), lambda _: run.finish()
    )


_RUNS = {"mlflow": _start_mlflow, "wandb": _start_wandb, "trackio": _start_trackio}
"""Function for each value of TRACKER.NAME. It continues the run with the given ID, or creates a
new run with the recipe."""
