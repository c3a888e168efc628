"""Arms from the paper's trainings and what a user gives: a config file and what it replaces."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import as_overrides, scaled_lengths
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.study.arms import Arm, make_arm
from slowfast_patches.study.experiments import SCRATCH, Training
from slowfast_patches.study.toy import Toy, toy_overrides

__all__ = ["Arms"]

logger = logging.getLogger(__name__)

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
    _made: dict[Training, Arm] = field(default_factory=dict, init=False)

    def arm(self, training: Training) -> Arm:
        """The arm of a training.

        Raises:
            ValueError: no such file, or a recipe that cannot be trained; names it.
        """
        if training not in self._made:
            self._made[training] = self._make(training)
        return self._made[training]

    def _make(self, training: Training) -> Arm:
        path, name = self.configs / training.recipe, training.folder
        plain = _written(path)
        overrides = as_overrides(self._own_keys(plain, training)) + training.overrides
        overrides += _fitting(self.overrides, plain, path)
        arm = make_arm(name, name, path, overrides)
        factor = training.factor
        if training.as_long_as is not None:
            other = self.arm(training.as_long_as)
            factor = _nominal_iterations(other) / _nominal_iterations(arm)
        if factor is not None:
            overrides += as_overrides(_with_length(arm.recipe, factor))
            arm = make_arm(name, name, path, overrides)
        return replace(arm, open_keys=_open_keys(arm.recipe, training))

    def _own_keys(self, plain: Recipe, training: Training) -> dict[str, object]:
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


def _open_keys(recipe: Recipe, training: Training) -> frozenset[str]:
    """Keys that are not given, and may have been anything in a run: where its inputs were."""
    keys = set[str]()
    if not recipe.data.path_to_data_dir:
        keys |= {"DATA.PATH_TO_DATA_DIR", "DATA.PATH_PREFIX"}
    if training.start != SCRATCH and not recipe.train.checkpoint_file_path:
        keys |= {"TRAIN.CHECKPOINT_FILE_PATH", "TRAIN.CHECKPOINT_TYPE"}
    return frozenset(keys)
