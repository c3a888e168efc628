"""Keys of experiment trackers."""

from __future__ import annotations

from dataclasses import dataclass

from slowfast_patches.config.fields import ExtraKeys, free_key, one_of, only_with


@dataclass(frozen=True)
class TrackerKeys(ExtraKeys):
    name: str = free_key(
        "",
        "Experiment tracker to which the metrics and the recipe are sent. Empty: none.",
        one_of("", "mlflow", "wandb", "trackio"),
    )
    project: str = free_key(
        "multigrid",
        "Project of the tracker, which MLflow calls an experiment.",
        needs=only_with("TRACKER.NAME", "mlflow", "wandb", "trackio"),
    )
