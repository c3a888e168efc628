"""An arm of a study: a recipe under a name, checked, and what a run of it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from multigrid import Cost, Schedule, schedule_cost
from multigrid.cost import FlopsPerClip
from slowfast_patches.config import Recipe, check_recipe, load_recipe
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.launch.launch import for_processes, processes_of
from slowfast_patches.models.flops import check_shapes, flops_per_clip
from slowfast_patches.plan.plan import dataset_size
from slowfast_patches.plan.step_times import UNTIMED, Timing, measured_timing, read_step_times

__all__ = ["Arm", "TimingOf", "check_study", "cost_of", "make_arm", "measured_times"]


@dataclass(frozen=True)
class Arm:
    """A recipe under a name for people and one for its folder.

    `recipe` is what `cfg_file` and the KEY VALUE pairs `overrides` give. `open_keys` are keys that
    are not known yet, as where results are only looked at: a run may have had any value of them.
    """

    name: str
    folder: str
    cfg_file: Path
    overrides: tuple[str, ...]
    recipe: Recipe
    schedule: Schedule
    open_keys: frozenset[str] = frozenset()

    @property
    def iterations(self) -> int:
        return self.schedule.iterations

    @property
    def config(self) -> str:
        """Its file, with the folder that it is in."""
        return "/".join(self.cfg_file.parts[-2:])

    @property
    def judged_by(self) -> str:
        return " and ".join(map(metric_title, metric_names(self.recipe)))


def make_arm(name: str, folder: str, cfg_file: Path, overrides: Sequence[str]) -> Arm:
    """The arm that a config file and KEY VALUE pairs give.

    Raises:
        ValueError: it cannot be trained; says why, by its name.
    """
    try:
        recipe = for_processes(load_recipe(cfg_file, overrides))
        check_recipe(recipe, processes_of(recipe))
        schedule = schedule_of(recipe, dataset_size(recipe))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return Arm(name, folder, cfg_file, tuple(overrides), recipe, schedule)


def check_study(cfg_files: Sequence[Path], overrides: Sequence[str]) -> None:
    """Raise ValueError for configs of one name, and for keys that each run has for itself."""
    stems = [path.stem for path in cfg_files]
    if len(set(stems)) < len(stems):
        raise ValueError(f"the configs need different file names, which name their runs: {stems}")
    for key, option in {"RNG_SEED": "--seeds", "OUTPUT_DIR": "--output"}.items():
        if key in overrides[::2]:
            raise ValueError(f"{key} is set for each run; use {option}")


TimingOf = Callable[[Recipe, FlopsPerClip], Timing]
"""How long the iterations of a recipe take, from the recipe and its FLOPs of a clip."""


def measured_times(paths: Sequence[Path]) -> TimingOf | None:
    """Those of benchmarks/step_time.py in some files; None where none are given."""
    files = [read_step_times(path) for path in paths]
    return (lambda recipe, _: measured_timing(files, recipe)) if files else None


def cost_of(arm: Arm, timing_of: TimingOf | None = None) -> Cost:
    """What a run of an arm takes, without loading and evaluation.

    Raises:
        ValueError: the model cannot take a shape of the schedule, or, of `timing_of`, has no times.
    """
    flops = _counted(arm.recipe)
    timing = UNTIMED if timing_of is None else timing_of(arm.recipe, flops)
    try:
        return schedule_cost(arm.schedule, flops, timing.ours)
    except RuntimeError:
        check_shapes(arm.recipe, arm.schedule.shapes)  # says which shape does not fit, and why
        raise


_COUNTS: dict[str, FlopsPerClip] = {}


def _counted(recipe: Recipe) -> FlopsPerClip:
    """The recipe's `flops_per_clip`; models of the same kind are built and counted once."""
    sections = (recipe.model, recipe.resnet, recipe.slowfast, recipe.nonlocal_, recipe.detection)
    data = (recipe.data.num_frames, recipe.data.crop_size, recipe.data.input_channel_num)
    kind = repr((*sections, *data))
    if kind not in _COUNTS:
        _COUNTS[kind] = flops_per_clip(recipe)
    return _COUNTS[kind]
