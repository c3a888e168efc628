"""What a model learns to predict: one label of a clip, several labels, or the labels of boxes."""

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
    """Return the task of a recipe."""
    return _CLASSES[recipe.task](recipe)
