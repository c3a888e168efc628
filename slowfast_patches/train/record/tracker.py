"""Send the metrics of a training to MLflow, Weights & Biases or Trackio."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from slowfast_patches.config.metrics import COUNTS
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.train.record.tracked_runs import TRACKED_RUNS
from slowfast_patches.utils.files import write_text

logger = logging.getLogger(__name__)

_NOT_DRAWN = {"type", "iteration", "epoch", "seconds", "phase", "seconds_left", "shape", *COUNTS}


def curves(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the values to draw of a line of metrics.jsonl, by names such as "train/loss"."""
    kind = record["type"]
    if kind == "phase":
        return {}
    values = {f"{kind}/{name}": value for name, value in record.items() if name not in _NOT_DRAWN}
    if kind == "train":
        sides = ("shape/batch", "shape/frames", "shape/crop")
        values |= zip(sides, record["shape"], strict=True)
    return {name: value for name, value in values.items() if value is not None}


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


class Tracker:
    """Sender of the lines of metrics.jsonl to the run of an experiment tracker.

    Trackers cannot delete points, but a killed training repeats the iterations after its last
    checkpoint. So `send` must only be called when a checkpoint covers all lines. The file
    tracker.json in OUTPUT_DIR stores the ID of the tracker's run and which lines were sent.

    Args:
        recipe: The recipe of the training.
        resumes: Continue the run of the tracker that tracker.json names, if there is one.

    Raises:
        ValueError: The run of the tracker cannot be created or continued.
    """

    def __init__(self, recipe: Recipe, resumes: bool) -> None:
        folder = Path(recipe.output_dir)
        name = recipe.train.tracker
        self._lines = folder / "metrics.jsonl"
        self._file = folder / "tracker.json"
        stored: dict[str, Any] = {}
        if resumes and self._file.exists():
            stored = json.loads(self._file.read_text())
        is_new = stored.get("tracker") != name
        new: dict[str, Any] = {"tracker": name, "run": uuid4().hex, "train": 0, "val": 0}
        self._state = new if is_new else stored
        try:
            self._run = TRACKED_RUNS[name](recipe, self._state["run"], is_new)
        except Exception as error:  # each package has its own error types
            raise ValueError(
                f"TRAIN.TRACKER {name} cannot be started: {error}. If the tracker's run was "
                f"deleted, delete {self._file} to create a new one."
            ) from error
        self._state["run"] = self._run.id
        write_text(self._file, json.dumps(self._state))

    def send(self) -> None:
        """Send the lines that were not sent yet. If this fails, warn, and send them next time."""
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
        write_text(self._file, json.dumps(self._state))

    def close(self, *, finished: bool) -> None:
        """End the run of the tracker as finished or as stopped."""
        try:
            self._run.close(finished)
        except Exception as error:  # must not replace the error that ended the training
            logger.warning("TRAIN.TRACKER: ending the run of the tracker failed: %s", error)
