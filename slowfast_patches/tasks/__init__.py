"""Tasks: predict one label for each clip, several labels for each clip, or labels of boxes."""

from __future__ import annotations

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.tasks.detection import Detection
from slowfast_patches.tasks.task import MultiLabel, Task

__all__ = ["Task", "task_of"]

_CLASSES: dict[str, type[Task]] = {
    "single_label": Task,
    "multi_label": MultiLabel,
    "detection": Detection,
}


def task_of(recipe: Recipe) -> Task:
    """Build the task that a recipe trains and tests."""
    return _CLASSES[recipe.task](recipe)
