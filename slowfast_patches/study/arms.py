"""Arms: recipes under names, checked, and what a run of one costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from multigrid import Cost, Schedule, schedule_cost
from multigrid.cost import FlopsPerClip
from slowfast_patches.config import Recipe, check_recipe
from slowfast_patches.config.scale import as_overrides, scaled_lengths
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.datasets.lists.dataset_lists import load_with_classes
from slowfast_patches.launch.launch import for_processes, processes_of
from slowfast_patches.models.flops import flops_per_clip
from slowfast_patches.plan.plan import dataset_size
from slowfast_patches.plan.step_times import UNTIMED, Timing, measured_timing, read_step_times

__all__ = [
    "Arm",
    "Timings",
    "at_lengths",
    "check_study",
    "cost_of",
    "make_arm",
    "measured_times",
    "scaled",
]


@dataclass(frozen=True)
class Arm:
    """A recipe under a name.

    name: also that of its folder, unless `folder` differs.
    recipe: what `cfg_file` and the KEY VALUE pairs `overrides` give.
    label, length: the name that a recipe has at all its lengths, and the multiple of its own.
    baseline: the name of the arm that its speed-up is relative to, first its own.
    open_keys: keys of which a finished run may have any value.
    """

    name: str
    folder: str
    cfg_file: Path
    overrides: tuple[str, ...]
    recipe: Recipe
    schedule: Schedule
    label: str
    baseline: str
    length: float = 1.0
    open_keys: frozenset[str] = frozenset()

    @property
    def iterations(self) -> int:
        return self.schedule.iterations


def make_arm(name: str, folder: str, cfg_file: Path, overrides: Sequence[str]) -> Arm:
    """The arm of a config file and KEY VALUE pairs.

    Raises:
        ValueError: it cannot be trained; names it.
    """
    try:
        recipe = for_processes(load_with_classes(cfg_file, overrides))
        check_recipe(recipe, processes_of(recipe))
        schedule = schedule_of(recipe, dataset_size(recipe))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    pairs = tuple(overrides)
    return Arm(name, folder, cfg_file, pairs, recipe, schedule, label=name, baseline=name)


def at_lengths(arm: Arm, lengths: Sequence[float]) -> list[Arm]:
    """The arm with all its lengths in epochs multiplied, each in turn, the shortest first.

    At 1 it is the arm itself, so that its runs are those of a comparison without lengths; the
    others are called "NAME at 0.25×" and kept in NAME_x0.25. A multigrid arm's EPOCH_FACTOR is
    relative and stays.

    Raises:
        ValueError: a length that is not above 0 or given twice, or at which the arm cannot be
            trained.
    """
    if not all(0 < length < math.inf for length in lengths) or len(set(lengths)) < len(lengths):
        given = " ".join(f"{length:g}" for length in lengths)
        raise ValueError(f"--lengths takes different numbers above 0, not {given}")
    arms = [
        scaled(arm, x, f"{arm.name} at {x:g}×", f"{arm.folder}_x{x:g}") for x in sorted(lengths)
    ]
    pairs = zip(arms, sorted(lengths), strict=True)
    return [replace(longer, label=arm.name, length=length) for longer, length in pairs]


def scaled(arm: Arm, length: float, name: str, folder: str) -> Arm:
    """The arm with all its lengths in epochs multiplied, under another name; at 1 itself."""
    if length == 1:
        return arm
    pairs = as_overrides(scaled_lengths(arm.recipe, length))
    return make_arm(name, folder, arm.cfg_file, (*arm.overrides, *pairs))


def check_study(cfg_files: Sequence[Path], overrides: Sequence[str]) -> None:
    """Raise ValueError for configs of one name, and for keys that each run has for itself."""
    stems = [path.stem for path in cfg_files]
    if len(set(stems)) < len(stems):
        raise ValueError(f"the configs need different file names, which name their runs: {stems}")
    for key, option in {"RNG_SEED": "--seeds", "OUTPUT_DIR": "--output"}.items():
        if key in overrides[::2]:
            raise ValueError(f"{key} is set for each run; use {option}")


Timings = Callable[[Recipe, FlopsPerClip], Timing]
"""How long the iterations of a recipe take, from the recipe and its FLOPs of a clip."""


def measured_times(paths: Sequence[Path]) -> Timings:
    """The timing of recipes by files of benchmarks/step_time.py; without files, unknown."""
    files = [read_step_times(path) for path in paths]
    return lambda recipe, _: measured_timing(files, recipe) if files else UNTIMED


def cost_of(arm: Arm, timings: Timings) -> Cost:
    """What a run of an arm takes, without loading and evaluation.

    Raises:
        MisfitError: there are step times, but none of this recipe.
    """
    flops = _flops_per_clip(arm.recipe)
    return schedule_cost(arm.schedule, flops, timings(arm.recipe, flops).ours)


_COUNTS: dict[str, FlopsPerClip] = {}


def _flops_per_clip(recipe: Recipe) -> FlopsPerClip:
    """The recipe's `flops_per_clip`; models of the same kind are built and counted once."""
    sections = (recipe.model, recipe.resnet, recipe.slowfast, recipe.nonlocal_, recipe.hf)
    data = (recipe.data.num_frames, recipe.data.crop_size, recipe.data.input_channel_num)
    kind = repr((*sections, *data))
    if kind not in _COUNTS:
        _COUNTS[kind] = flops_per_clip(recipe)
    return _COUNTS[kind]
