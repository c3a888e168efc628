"""From a training of an experiment to a arm that runs: a config file and what it replaces."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import as_overrides, scaled_lengths
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.launch.launch import for_processes, processes_of
from slowfast_patches.plan.plan import dataset_size
from slowfast_patches.study.reproduction.experiment import SCRATCH, Experiment, Training
from slowfast_patches.study.reproduction.toy import Toy, toy_overrides
from slowfast_patches.study.runs import Arm

__all__ = ["Choices", "Recipes", "trainings_of"]

logger = logging.getLogger(__name__)

_REFERENCE = "SOLVER.REFERENCE_WORLD_SIZE"


@dataclass(frozen=True)
class Choices:
    """What the user gives beside the experiment.

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


class Recipes:
    """Makes the recipes of trainings, each once."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.recipe = cache(self._recipe)

    def _recipe(self, training: Training, baseline: Training) -> Arm:
        """The arm of a training whose speed-up is relative to `baseline`.

        Raises:
            ValueError: no such file, or a arm that cannot be trained; names it.
        """
        path = self.choices.configs / training.recipe
        try:
            plain = load_recipe(path)
            overrides = as_overrides(self._own_keys(plain, training, baseline))
            overrides += training.overrides + _fitting(self.choices.overrides, plain, path)
            recipe = for_processes(load_recipe(path, overrides))
            if factor := self._factor(recipe, training, baseline):
                overrides += as_overrides(_with_length(recipe, factor))
                recipe = for_processes(load_recipe(path, overrides))
            check_recipe(recipe, processes_of(recipe))
            schedule = schedule_of(recipe, dataset_size(recipe))
        except ValueError as error:
            raise ValueError(f"{training.folder}: {error}") from error
        folder, open_keys = training.folder, _open_keys(recipe, training)
        return Arm(folder, folder, path, overrides, recipe, schedule.iterations, open_keys)

    def _own_keys(self, plain: Recipe, training: Training, baseline: Training) -> dict[str, object]:
        """Where its data and weights are, and its size if it is a toy."""
        keys: dict[str, object] = {}
        if self.choices.toy is not None:
            reference = load_recipe(self.choices.configs / baseline.recipe)
            keys |= toy_overrides(plain, reference, self.choices.toy)
        if data := self.choices.data.get(plain.train.dataset.lower()):
            keys["DATA.PATH_TO_DATA_DIR"] = data
        if training.start != SCRATCH:
            # The recipe's own path stands for a file that the user has to give.
            weights = self.choices.weights.get(training.start, "")
            keys["TRAIN.CHECKPOINT_FILE_PATH"] = weights
            keys["TRAIN.CHECKPOINT_TYPE"] = "caffe2" if weights.endswith(".pkl") else "pytorch"
        return keys

    def _factor(self, recipe: Recipe, training: Training, baseline: Training) -> float | None:
        """By how much the recipe's epochs are to be multiplied, if at all."""
        if training.as_long_as is None:
            return training.factor
        other = self.recipe(training.as_long_as, baseline)
        return _nominal_iterations(other.recipe) / _nominal_iterations(recipe)


def trainings_of(experiments: Iterable[Experiment]) -> dict[Training, Training]:
    """Every training of some experiments, once, with the baseline that it is compared with."""
    found: dict[Training, Training] = {}
    for row in (row for experiment in experiments for row in experiment.rows):
        found.setdefault(row.baseline, row.baseline)
        found.setdefault(row.training, row.baseline)
    return found


def _nominal_iterations(recipe: Recipe) -> int:
    """Iterations on as many videos as the arm was made for: its length in epochs must not depend
    on whether the data set is at hand, or its results could not be told from others'."""
    return schedule_of(recipe, recipe.data.num_train_videos or dataset_size(recipe)).iterations


def _with_length(recipe: Recipe, factor: float) -> dict[str, object]:
    """Keys that train for `factor` times the baseline's epochs."""
    if recipe.uses_multigrid:
        return {"MULTIGRID.EPOCH_FACTOR": factor}
    return scaled_lengths(recipe, factor)


def _fitting(overrides: tuple[str, ...], plain: Recipe, path: Path) -> tuple[str, ...]:
    """The user's pairs without a scaling that is not for this arm: one from 8 GPUs says nothing
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
