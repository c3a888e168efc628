"""From a training of an experiment to a recipe that runs: a config file and what it replaces."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fvcore.common.config import CfgNode

from slowfast_patches.config import check_config, load_config
from slowfast_patches.config.scale import as_overrides, scaled_lengths
from slowfast_patches.config.schedule import schedule_from_config, uses_multigrid
from slowfast_patches.launch.launch import for_processes, processes_of
from slowfast_patches.plan.plan import dataset_size
from slowfast_patches.study.reproduction.experiment import SCRATCH, Experiment, Training
from slowfast_patches.study.reproduction.toy import Toy, toy_overrides
from slowfast_patches.study.runs import Recipe

__all__ = ["Choices", "Recipes", "trainings_of"]

logger = logging.getLogger(__name__)

_REFERENCE = "SOLVER.REFERENCE_WORLD_SIZE"


@dataclass(frozen=True)
class Choices:
    """What the user gives beside the experiment.

    configs: the folder of the recipes.
    data: folders of the data sets, by name.
    weights: checkpoints to start from, by the name of the start.
    overrides: KEY VALUE pairs for every recipe.
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

    def _recipe(self, training: Training, baseline: Training) -> Recipe:
        """The recipe of a training whose speed-up is relative to `baseline`.

        Raises:
            ValueError: no such file, or a recipe that cannot be trained; names it.
        """
        path = self.choices.configs / training.cfg
        try:
            plain = load_config(path)
            overrides = as_overrides(self._own_keys(plain, training, baseline))
            overrides += training.overrides + _fitting(self.choices.overrides, plain, path)
            cfg = for_processes(load_config(path, overrides))
            if factor := self._factor(cfg, training, baseline):
                overrides += as_overrides(_with_length(cfg, factor))
                cfg = for_processes(load_config(path, overrides))
            check_config(cfg, processes_of(cfg))
            schedule = schedule_from_config(cfg, dataset_size(cfg))
        except ValueError as error:
            raise ValueError(f"{training.folder}: {error}") from error
        folder, open_keys = training.folder, _open_keys(cfg, training)
        return Recipe(folder, folder, path, overrides, cfg, schedule.iterations, open_keys)

    def _own_keys(
        self, plain: CfgNode, training: Training, baseline: Training
    ) -> dict[str, object]:
        """Where its data and weights are, and its size if it is a toy."""
        keys: dict[str, object] = {}
        if self.choices.toy is not None:
            reference = load_config(self.choices.configs / baseline.cfg)
            keys |= toy_overrides(plain, reference, self.choices.toy)
        if data := self.choices.data.get(plain.TRAIN.DATASET.lower()):
            keys["DATA.PATH_TO_DATA_DIR"] = data
        if training.start != SCRATCH:
            # The recipe's own path stands for a file that the user has to give.
            weights = self.choices.weights.get(training.start, "")
            keys["TRAIN.CHECKPOINT_FILE_PATH"] = weights
            keys["TRAIN.CHECKPOINT_TYPE"] = "caffe2" if weights.endswith(".pkl") else "pytorch"
        return keys

    def _factor(self, cfg: CfgNode, training: Training, baseline: Training) -> float | None:
        """By how much the recipe's epochs are to be multiplied, if at all."""
        if training.as_long_as is None:
            return training.factor
        other = self.recipe(training.as_long_as, baseline)
        return _nominal_iterations(other.cfg) / _nominal_iterations(cfg)


def trainings_of(experiments: Iterable[Experiment]) -> dict[Training, Training]:
    """Every training of some experiments, once, with the baseline that it is compared with."""
    found: dict[Training, Training] = {}
    for row in (row for experiment in experiments for row in experiment.rows):
        found.setdefault(row.baseline, row.baseline)
        found.setdefault(row.training, row.baseline)
    return found


def _nominal_iterations(cfg: CfgNode) -> int:
    """Iterations on as many videos as the recipe was made for: its length in epochs must not depend
    on whether the data set is at hand, or its results could not be told from others'."""
    return schedule_from_config(cfg, cfg.DATA.NUM_TRAIN_VIDEOS or dataset_size(cfg)).iterations


def _with_length(cfg: CfgNode, factor: float) -> dict[str, object]:
    """Keys that train for `factor` times the baseline's epochs."""
    if uses_multigrid(cfg):
        return {"MULTIGRID.EPOCH_FACTOR": factor}
    return scaled_lengths(cfg, factor)


def _fitting(overrides: tuple[str, ...], plain: CfgNode, path: Path) -> tuple[str, ...]:
    """The user's pairs without a scaling that is not for this recipe: one from 8 GPUs says nothing
    of what was written for one."""
    pairs = dict(zip(overrides[::2], overrides[1::2], strict=False))
    reference = pairs.get(_REFERENCE, "0")
    if reference in ("0", str(plain.NUM_GPUS)):
        return overrides
    logger.warning(
        "%s is for NUM_GPUS %d, not for the %s of %s: it is left as it is",
        *(path.name, plain.NUM_GPUS, reference, _REFERENCE),
    )
    return as_overrides({k: v for k, v in pairs.items() if k not in (_REFERENCE, "NUM_GPUS")})


def _open_keys(cfg: CfgNode, training: Training) -> frozenset[str]:
    """Keys that are not given, and may have been anything in a run: where its inputs were."""
    keys = set[str]()
    if not cfg.DATA.PATH_TO_DATA_DIR:
        keys |= {"DATA.PATH_TO_DATA_DIR", "DATA.PATH_PREFIX"}
    if training.start != SCRATCH and not cfg.TRAIN.CHECKPOINT_FILE_PATH:
        keys |= {"TRAIN.CHECKPOINT_FILE_PATH", "TRAIN.CHECKPOINT_TYPE"}
    return frozenset(keys)
