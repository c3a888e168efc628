"""From a training of an experiment to a recipe that runs: a config file and what it replaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fvcore.common.config import CfgNode

from slowfast_patches.config import check_config, load_config
from slowfast_patches.config.scale import scaled_lengths
from slowfast_patches.config.schedule import schedule_from_config, uses_multigrid
from slowfast_patches.engine.launch import for_processes, processes_of
from slowfast_patches.engine.plan import dataset_size
from slowfast_patches.engine.reproduction.experiment import SCRATCH, Experiment, Training
from slowfast_patches.engine.reproduction.toy import Toy, toy_overrides
from slowfast_patches.engine.runs import Recipe

__all__ = ["Choices", "Recipes", "trainings_of"]


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
        overrides = _texts(self._own_keys(path, training, baseline)) + training.overrides
        overrides += self.choices.overrides
        try:
            cfg = load_config(path, overrides)
            if factor := self._factor(cfg, training, baseline):
                overrides += _texts(_with_length(cfg, factor))
                cfg = load_config(path, overrides)
            cfg = for_processes(cfg)
            check_config(cfg, processes_of(cfg))
            schedule = schedule_from_config(cfg, dataset_size(cfg))
        except ValueError as error:
            raise ValueError(f"{training.folder}: {error}") from error
        folder = training.folder
        return Recipe(folder, folder, path, overrides, cfg, schedule.iterations)

    def _own_keys(self, path: Path, training: Training, baseline: Training) -> dict[str, object]:
        """Where its data and weights are, and its size if it is a toy."""
        keys: dict[str, object] = {}
        cfg = load_config(path)
        if self.choices.toy is not None:
            reference = load_config(self.choices.configs / baseline.cfg)
            keys |= toy_overrides(cfg, reference, self.choices.toy)
        if data := self.choices.data.get(cfg.TRAIN.DATASET):
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


def _texts(keys: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(str(item) for pair in keys.items() for item in pair)
