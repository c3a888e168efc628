"""Arms of a study: named recipes that can be trained, and the cost of their runs."""

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
from slowfast_patches.launch.launch import resolve
from slowfast_patches.plan.flops import flops_per_clip
from slowfast_patches.plan.plan import dataset_size
from slowfast_patches.plan.step_times import UNTIMED, Timing, measured_timing, read_step_times


@dataclass(frozen=True)
class Arm:
    """Named recipe of a study.

    Attributes:
        name: the name in tables.
        folder: the folder of its runs, relative to the study's.
        cfg_file: the config file.
        overrides: KEY VALUE pairs.
        recipe: the recipe that the file and the pairs result in.
        schedule: the schedule of the recipe.
        label: the name that all lengths of one recipe share.
        baseline: the name of the arm that speed-ups are relative to.
        length: the length as a multiple of the recipe's own.
        open_keys: keys for which any value of a finished run is accepted.
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
    """Build an arm from a config file and KEY VALUE pairs.

    Raises:
        ValueError: The recipe cannot be trained. The message begins with the arm's name.
    """
    try:
        recipe = resolve(load_with_classes(cfg_file, overrides))
        check_recipe(recipe)
        schedule = schedule_of(recipe, dataset_size(recipe))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    pairs = tuple(overrides)
    return Arm(name, folder, cfg_file, pairs, recipe, schedule, label=name, baseline=name)


def at_lengths(arm: Arm, lengths: Sequence[float]) -> list[Arm]:
    """Return an arm at several lengths.

    The other lengths are named "NAME at 0.25×" and trained in the folder NAME_x0.25. Length 1 is
    the arm itself, so a comparison with lengths reuses the runs of one without. EPOCH_FACTOR of a
    multigrid arm is relative and stays.

    Args:
        arm: the arm at length 1.
        lengths: multiples of its length in epochs.

    Returns:
        An arm for each length, the shortest first.

    Raises:
        ValueError: A length is not above 0, is given twice, or is too short to train the arm.
    """
    if not all(0 < length < math.inf for length in lengths) or len(set(lengths)) < len(lengths):
        given = " ".join(f"{length:g}" for length in lengths)
        raise ValueError(f"--lengths takes different numbers above 0, not {given}.")
    return [
        scaled(arm, x, f"{arm.name} at {x:g}×", f"{arm.folder}_x{x:g}") for x in sorted(lengths)
    ]


def scaled(arm: Arm, length: float, name: str, folder: str) -> Arm:
    """Return the arm with all its lengths in epochs multiplied, under another name.

    At length 1 the arm itself is returned, under its own name.
    """
    if length == 1:
        return arm
    pairs = as_overrides(scaled_lengths(arm.recipe, length))
    other = make_arm(name, folder, arm.cfg_file, (*arm.overrides, *pairs))
    return replace(other, label=arm.label, baseline=arm.baseline, length=length)


def check_study(cfg_files: Sequence[Path], overrides: Sequence[str]) -> None:
    """Check the options of a study.

    Raises:
        ValueError: Two configs have the same file name, or a key is given that differs from run to
            run.
    """
    stems = [path.stem for path in cfg_files]
    if len(set(stems)) < len(stems):
        raise ValueError(f"The configs need different file names, because runs use them: {stems}")
    for key, option in {"RNG_SEED": "--seeds", "OUTPUT_DIR": "--output"}.items():
        if key in overrides[::2]:
            raise ValueError(f"{key} is set for each run. Use {option} instead.")


Timings = Callable[[Recipe, FlopsPerClip], Timing]
"""Function that returns the timing of a recipe, given the recipe and its FLOPs per clip."""


def measured_times(paths: Sequence[Path]) -> Timings:
    """Return timings that look up files of benchmarks/step_time.py, or `UNTIMED` without files."""
    files = [read_step_times(path) for path in paths]
    return lambda recipe, _: measured_timing(files, recipe) if files else UNTIMED


def cost_of(arm: Arm, timings: Timings) -> Cost:
    """Return the cost of a run of an arm, without loading and evaluation.

    Raises:
        MisfitError: There are step times, but none for this recipe.
    """
    flops = _flops_per_clip(arm.recipe)
    return schedule_cost(arm.schedule, flops, timings(arm.recipe, flops).ours)


_COUNTS: dict[str, FlopsPerClip] = {}


def _flops_per_clip(recipe: Recipe) -> FlopsPerClip:
    """Return `flops_per_clip` of a recipe, counted once for all recipes of the same model."""
    sections = (recipe.model, recipe.resnet, recipe.slowfast, recipe.nonlocal_, recipe.hf)
    data = (recipe.data.num_frames, recipe.data.crop_size, recipe.data.input_channel_num)
    kind = repr((*sections, *data))
    if kind not in _COUNTS:
        _COUNTS[kind] = flops_per_clip(recipe)
    return _COUNTS[kind]
