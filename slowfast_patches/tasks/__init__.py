"""Tasks: predict one label or several labels for each clip."""

from __future__ import annotations

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.registry import TASKS
from slowfast_patches.tasks.scores import ComputedMetrics
from slowfast_patches.tasks.task import MultiLabel, Task

__all__ = ["ComputedMetrics", "MultiLabel", "Task", "task_of"]


def task_of(recipe: Recipe) -> Task:
    """Build the task that a recipe trains and tests."""
    build = TASKS[recipe.task].build
    assert build is not None
    task: Task = build(recipe)
    return task
