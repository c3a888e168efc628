"""Send the metrics of a training to MLflow, Weights & Biases or Trackio."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any
from uuid import uuid4

from multigrid import ScheduleStep
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.train.checkpoint import explain_write_errors
from slowfast_patches.train.hooks import is_due
from slowfast_patches.train.record.log_metrics import curves
from slowfast_patches.train.record.tracked_runs import TRACKED_RUNS
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
        self._run: Any = None

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
        new: dict[str, Any] = {"tracker": name, "run": uuid4().hex, "train": 0, "val": 0}
        self._state = new if is_new else stored
        try:
            self._run = TRACKED_RUNS[name](self._recipe, self._state["run"], is_new)
        except Exception as error:  # each package has its own error types
            raise ValueError(
                f"TRAIN.TRACKER {name} cannot be started: {error}. If the tracker's run was "
                f"deleted, delete {self._file} to create a new one."
            ) from error
        self._state["run"] = self._run.id
        self._send()

    def after_step(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        if trainer.world.is_main and is_due(trainer, self._after):
            self._send()

    def after_train(self, trainer: Trainer) -> None:
        if self._run is None:
            return
        finished = trainer.progress.iteration == trainer.schedule.iterations
        if finished:
            self._send()
        try:
            self._run.close(finished)
        except Exception as error:  # must not replace the error that ended the training
            logger.warning("TRAIN.TRACKER: ending the run of the tracker failed: %s", error)

    def _send(self) -> None:
        """Send the lines that were not sent yet."""
        try:
            for line in self._lines.read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                kind, iteration = record["type"], record["iteration"]
                if (values := curves(record)) and iteration > self._state[kind]:
                    axes = {"epoch": record["epoch"], "seconds": record["seconds"]}
                    self._run.log(values | axes, iteration)
                    self._state[kind] = iteration
        except Exception as error:
            logger.warning("TRAIN.TRACKER: sending metrics failed, and is tried again: %s", error)
        with explain_write_errors("The state of TRAIN.TRACKER", self._recipe.output_dir):
            write_text(self._file, json.dumps(self._state))
