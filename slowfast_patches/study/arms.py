"""The arms of a study: recipes under names, checked, given by a user or made of the paper's
trainings, and what a run of one costs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from multigrid import Cost, Schedule, schedule_cost
from multigrid.cost import FlopsPerClip
from slowfast_patches.config import Recipe, check_recipe, load_recipe
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.scale import as_overrides, scaled_lengths
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.launch.launch import for_processes, processes_of
from slowfast_patches.models.flops import check_shapes, flops_per_clip
from slowfast_patches.plan.plan import dataset_size
from slowfast_patches.plan.step_times import UNTIMED, Timing, measured_timing, read_step_times
from slowfast_patches.study.experiments import SCRATCH, PaperTraining
from slowfast_patches.study.toy import Toy, toy_overrides

__all__ = [
    "Arm",
    "Arms",
    "TimingOf",
    "at_lengths",
    "check_study",
    "cost_of",
    "make_arm",
    "measured_times",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arm:
    """A recipe under a name for people and one for its folder.

    `recipe` is what `cfg_file` and the KEY VALUE pairs `overrides` give. Of a recipe that is
    compared at several lengths, `label` is the name of all its arms, and `length` the multiple of
    its own. `open_keys` are keys that are not known yet, as where results are only looked at: a run
    may have had any value of them.
    """

    name: str
    folder: str
    cfg_file: Path
    overrides: tuple[str, ...]
    recipe: Recipe
    schedule: Schedule
    label: str
    length: float = 1.0
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
    return Arm(name, folder, cfg_file, tuple(overrides), recipe, schedule, label=name)


def at_lengths(arm: Arm, lengths: Sequence[float]) -> list[Arm]:
    """The arm with all its lengths in epochs multiplied, each in turn, the shortest first.

    At 1 it is the arm itself, so that its runs are those of a comparison without lengths; the
    others are called "NAME at 0.25×" and kept in NAME_x0.25. A multigrid arm's EPOCH_FACTOR is
    relative and stays.

    Raises:
        ValueError: lengths that are no finite numbers above 0, or the same, or one at which the arm
            cannot be trained; names it.
    """
    for length in lengths:
        if not 0 < length < math.inf:
            raise ValueError(
                f"--lengths are multiples of the recipes' own lengths, above 0, not {length:g}"
            )
    names = [f"{length:g}" for length in lengths]
    if len(set(names)) < len(names):
        raise ValueError(f"--lengths has one twice: {' '.join(names)}; give each once")
    return [_lengthened(arm, length) for length in sorted(lengths)]


def _lengthened(arm: Arm, length: float) -> Arm:
    if length == 1:
        return arm
    overrides = (*arm.overrides, *as_overrides(scaled_lengths(arm.recipe, length)))
    name = f"{arm.name} at {length:g}×"
    try:
        longer = make_arm(name, f"{arm.folder}_x{length:g}", arm.cfg_file, overrides)
    except ValueError as error:  # of the length, since the arm itself could be made
        raise ValueError(f"{error}; or leave {length:g} out of --lengths") from error
    return replace(longer, label=arm.name, length=length)


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
    sections = (recipe.model, recipe.resnet, recipe.slowfast, recipe.nonlocal_, recipe.hf)
    data = (recipe.data.num_frames, recipe.data.crop_size, recipe.data.input_channel_num)
    kind = repr((*sections, *data))
    if kind not in _COUNTS:
        _COUNTS[kind] = flops_per_clip(recipe)
    return _COUNTS[kind]


_written = cache(load_recipe)
"""A recipe as it is in its file; many trainings share one."""

_REFERENCE = "SOLVER.REFERENCE_WORLD_SIZE"


@dataclass
class Arms:
    """Makes the arms of trainings, each once, with what a user gives.

    configs: the folder of the recipes.
    data: folders of the data sets, by name.
    weights: checkpoints to start from, by the name of the start.
    overrides: KEY VALUE pairs for every arm.
    toy: train at toy size.
    """

    configs: Path
    data: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    toy: Toy | None = None
    _made: dict[PaperTraining, Arm] = field(default_factory=dict, init=False)

    def arm(self, training: PaperTraining) -> Arm:
        """The arm of a training.

        Raises:
            ValueError: no such file, or a recipe that cannot be trained; names it.
        """
        if training not in self._made:
            self._made[training] = self._make(training)
        return self._made[training]

    def _make(self, training: PaperTraining) -> Arm:
        path = self.configs / training.recipe
        name = training.folder
        plain = _written(path)
        overrides = training.overrides + as_overrides(self._own_keys(plain, training))
        overrides += _fitting(self.overrides, plain, path)
        arm = make_arm(name, name, path, overrides)
        factor = training.factor
        if training.as_long_as is not None:
            other = self.arm(training.as_long_as)
            factor = _nominal_iterations(other) / _nominal_iterations(arm)
        lengths = {} if factor is None else _with_length(arm.recipe, factor)
        if lengths:
            overrides += as_overrides(lengths)
            arm = make_arm(name, name, path, overrides)
        return replace(arm, open_keys=_open_keys(arm.recipe, training))

    def _own_keys(self, plain: Recipe, training: PaperTraining) -> dict[str, object]:
        """Where its data and weights are, and its size if it is a toy."""
        keys: dict[str, object] = {}
        if self.toy is not None:
            reference = _written(self.configs / (training.baseline or training).recipe)
            keys |= toy_overrides(plain, reference, self.toy)
        if data := self.data.get(plain.train.dataset.lower()):
            keys["DATA.PATH_TO_DATA_DIR"] = data
        if training.start != SCRATCH:
            # The recipe's own path stands for a file that the user has to give.
            weights = self.weights.get(training.start, "")
            keys["TRAIN.CHECKPOINT_FILE_PATH"] = weights
            keys["TRAIN.CHECKPOINT_TYPE"] = "caffe2" if weights.endswith(".pkl") else "pytorch"
        return keys


def _nominal_iterations(arm: Arm) -> int:
    """Iterations on as many videos as the recipe was made for: its length in epochs must not depend
    on whether the data set is at hand, or its results could not be told from others'."""
    num_videos = arm.recipe.data.num_train_videos or arm.schedule.num_videos
    return schedule_of(arm.recipe, num_videos).iterations


def _with_length(recipe: Recipe, factor: float) -> dict[str, object]:
    """Keys that train for `factor` times the baseline's epochs."""
    if recipe.uses_multigrid:
        return {"MULTIGRID.EPOCH_FACTOR": factor}
    return scaled_lengths(recipe, factor)


def _fitting(overrides: tuple[str, ...], plain: Recipe, path: Path) -> tuple[str, ...]:
    """The user's pairs without a scaling that is not for this recipe: one from 8 GPUs says nothing
    of what was written for one."""
    pairs = dict(zip(overrides[::2], overrides[1::2], strict=False))
    reference = pairs.get(_REFERENCE, "0")
    if reference in ("0", str(plain.num_gpus)):
        return overrides
    logger.warning(
        "%s is for NUM_GPUS %d, not for the %s of %s: it is left as it is",
        *(path.name, plain.num_gpus, reference, _REFERENCE),
    )
    return as_overrides({k: v for k, v in pairs.items() if k not in (_REFERENCE, "NUM_GPUS")})


def _open_keys(recipe: Recipe, training: PaperTraining) -> frozenset[str]:
    """Keys that are not given, and may have been anything in a run: where its inputs were."""
    keys = set[str]()
    if not recipe.data.path_to_data_dir:
        keys |= {"DATA.PATH_TO_DATA_DIR", "DATA.PATH_PREFIX"}
    if training.start != SCRATCH and not recipe.train.checkpoint_file_path:
        keys |= {"TRAIN.CHECKPOINT_FILE_PATH", "TRAIN.CHECKPOINT_TYPE"}
    return frozenset(keys)
