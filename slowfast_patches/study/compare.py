"""Recipes to compare: checked, comparable, and if asked for one more of equal length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.scale import as_overrides, scaled_lengths
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.launch.launch import for_processes, processes_of
from slowfast_patches.models.flops import check_shapes
from slowfast_patches.plan.plan import dataset_size
from slowfast_patches.study.runs import Arm, check_own_keys

__all__ = ["make_recipes"]


def make_recipes(
    cfg_files: Sequence[Path], overrides: Sequence[str], *, equal_time: bool = False
) -> list[Arm]:
    """The recipes to compare, the reference first; `equal_time` adds one after it.

    That one is the first, shortened to the second's iterations (the paper's "Baseline 1/3.3").

    Raises:
        ValueError: fewer than two configs, two of the same name, one that cannot be trained, one
            that is judged by other metrics than the first.
    """
    if len(cfg_files) < 2:
        raise ValueError("a comparison takes two configs or more: --cfg A.yaml --cfg B.yaml")
    stems = [path.stem for path in cfg_files]
    if len(set(stems)) < len(stems):
        raise ValueError(f"the configs need different file names, which name their runs: {stems}")
    check_own_keys(overrides)
    recipes = [_make_recipe(path.stem, path.stem, path, overrides) for path in cfg_files]
    for arm in recipes[1:]:
        _check_metrics(recipes[0], arm)
    if equal_time:
        recipes.insert(1, _shorten(recipes[0], recipes[1]))
    return recipes


def _make_recipe(name: str, folder: str, cfg_file: Path, overrides: Sequence[str]) -> Arm:
    """A arm after trying what can be tried before training."""
    try:
        recipe = for_processes(load_recipe(cfg_file, overrides))
        check_recipe(recipe, processes_of(recipe))
        schedule = schedule_of(recipe, dataset_size(recipe))
        check_shapes(recipe, schedule.shapes)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return Arm(name, folder, cfg_file, tuple(overrides), recipe, schedule.iterations)


def _check_metrics(first: Arm, other: Arm) -> None:
    """Refuse recipes whose results are of different kinds."""
    ours, theirs = metric_names(first.recipe), metric_names(other.recipe)
    if ours != theirs:
        raise ValueError(
            f"{first.name} is judged by {_titles(ours)} ({_classes(first)}) and {other.name} by "
            f"{_titles(theirs)} ({_classes(other)}), which do not compare; give recipes of the "
            "same data set"
        )


def _classes(arm: Arm) -> str:
    recipe = arm.recipe
    return (
        f"DATA.MULTI_LABEL {recipe.data.multi_label}, MODEL.NUM_CLASSES {recipe.model.num_classes}"
    )


def _titles(names: Sequence[str]) -> str:
    return " and ".join(map(metric_title, names))


def _shorten(long: Arm, short: Arm) -> Arm:
    """The arm `long` with its lengths divided so that it has the iterations of `short`."""
    factor = long.iterations / short.iterations
    if factor <= 1:
        raise ValueError(
            f"--equal-time shortens the first config, {long.name} with {long.iterations} "
            f"iterations, to the second, {short.name} with {short.iterations}; give the longer "
            "one first"
        )
    return _make_recipe(
        f"{long.name} at 1/{factor:.1f}",
        f"{long.folder}_1_over_{factor:.1f}",
        long.cfg_file,
        (*long.overrides, *as_overrides(scaled_lengths(long.recipe, 1 / factor))),
    )
