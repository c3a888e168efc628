"""Runs of MLflow, Weights & Biases and Trackio, with one interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from slowfast_patches.config.recipe import Recipe, values_by_key


class TrackedRun(Protocol):
    """Run of an experiment tracker.

    A new run gets the recipe and the picture of the plan.

    Attributes:
        id: Text with which the tracker finds the run again.
    """

    id: str

    def log(self, values: Mapping[str, float], iteration: int) -> None:
        """Send the values of one iteration. "seconds" among them is the training time."""

    def close(self, finished: bool) -> None:
        """End the run as finished or as stopped."""


class _MlflowRun:
    def __init__(self, recipe: Recipe, run_id: str, is_new: bool) -> None:
        from mlflow import MlflowClient, set_experiment
        from mlflow.entities import Param

        self._client = MlflowClient()
        if not is_new:
            self._client.update_run(run_id, status="RUNNING")
            run = self._client.get_run(run_id)
        else:
            experiment = set_experiment(recipe.train.tracker_project)
            name = Path(recipe.output_dir).name
            run = self._client.create_run(experiment.experiment_id, run_name=name)
        self.id: str = run.info.run_id
        self._start: int = run.info.start_time
        if is_new:
            # MLflow takes at most 100 parameters at a time, of at most 6,000 characters.
            params = [Param(key, str(v)[:6000]) for key, v in values_by_key(recipe).items()]
            for first in range(0, len(params), 100):
                self._client.log_batch(self.id, params=params[first : first + 100])
            self._client.log_artifact(self.id, str(_picture(recipe)))

    def log(self, values: Mapping[str, float], iteration: int) -> None:
        from mlflow.entities import Metric

        # MLflow ignores a point that it already has, if its time is the same, too.
        time = self._start + round(1000 * values["seconds"])
        points = [Metric(name, value, time, iteration) for name, value in values.items()]
        self._client.log_batch(self.id, points)

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


class _WandbRun:
    def __init__(self, recipe: Recipe, run_id: str, is_new: bool) -> None:
        import wandb

        self.id = run_id
        self._run = wandb.init(
            project=recipe.train.tracker_project,
            name=Path(recipe.output_dir).name,
            id=run_id,
            resume="allow",
            config=values_by_key(recipe),
            dir=recipe.output_dir,
            # By default, a killed run loses its last 15 seconds offline.
            settings=wandb.Settings(x_transaction_log_flush_interval=1.0),
        )
        # Steps of wandb must rise, but a training and a validation may share an iteration.
        self._run.define_metric("*", step_metric="iteration")
        if is_new:
            self._run.log({"plan": wandb.Image(str(_picture(recipe)))})

    def log(self, values: Mapping[str, float], iteration: int) -> None:
        self._run.log({**values, "iteration": iteration})

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=int(not finished))


class _TrackioRun:
    def __init__(self, recipe: Recipe, run_id: str, is_new: bool) -> None:
        import trackio

        self.id = f"{Path(recipe.output_dir).name}-{run_id[:8]}" if is_new else run_id
        self._run: Any = trackio.init(
            recipe.train.tracker_project,
            name=self.id,
            config=values_by_key(recipe),
            resume="never" if is_new else "must",
        )
        if is_new:
            self._run.log({"plan": trackio.Image(str(_picture(recipe)))}, step=0)

    def log(self, values: Mapping[str, float], iteration: int) -> None:
        self._run.log(dict(values), step=iteration)

    def close(self, finished: bool) -> None:
        self._run.finish()


def _picture(recipe: Recipe) -> Path:
    return Path(recipe.output_dir, "plan.png")


TRACKED_RUNS: dict[str, Callable[[Recipe, str, bool], Any]] = {
    "mlflow": _MlflowRun,
    "wandb": _WandbRun,
    "trackio": _TrackioRun,
}
"""Class for each value of TRAIN.TRACKER: takes the recipe, the ID and whether the run is new."""
