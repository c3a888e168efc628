"""The evaluation of a model that is being trained."""

from __future__ import annotations

from typing import Any

from torch import nn

from multigrid import Schedule, Step, average_running_stats
from slowfast_patches.config.metrics import EMA, with_suffix
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.loader import (
    build_dataset,
    evaluation_loader,
    evaluation_rounds,
    precise_bn_loader,
)
from slowfast_patches.launch.stopping import StopRequest, TrainingInterruptedError
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.solver import Precision
from slowfast_patches.train.evaluate import evaluate
from slowfast_patches.train.precise_bn import update_precise_bn
from slowfast_patches.train.record.unreadable import TooManyUnreadableError
from slowfast_patches.train.running_stats import keep_buffers
from slowfast_patches.utils.distributed import World

__all__ = ["Validation"]


class Validation:
    """Validates at the baseline grid, after precise BN where the recipe asks for it.

    Args:
        recipe, world, stop: of the run.
        dataset: its training set, for precise BN.
        schedule: of the run.
    """

    def __init__(
        self, recipe: Recipe, world: World, stop: StopRequest, dataset: Any, schedule: Schedule
    ) -> None:
        self._recipe, self._world, self._stop = recipe, world, stop
        self._dataset, self._schedule = dataset, schedule
        self._videos = build_dataset(recipe, "val")
        self._transform = InputTransform.of_recipe(recipe, world.device)
        self._autocast = Precision(recipe, world.device).autocast
        self._unreadable = set[str]()

    def __call__(self, models: nn.ModuleList, step: Step) -> dict[str, float] | None:
        """Metrics after an iteration, as they go to files, of the model and, if there is one, its
        average; running statistics are averaged over the processes, or replaced.

        None where the run is to stop.

        Raises:
            TooManyUnreadableError: see `evaluate`. Then, as where it is to stop, the models are as
                they were before.
        """
        put_back, metrics = keep_buffers(models), dict[str, float]()
        try:
            for model, suffix in zip(models, ("", EMA), strict=False):
                average_running_stats(model)
                if self._recipe.bn.use_precise_stats:
                    self._update_precise_bn(model, step)
                metrics |= with_suffix(self._metrics(model), suffix)
        except (TrainingInterruptedError, TooManyUnreadableError) as error:
            put_back()
            if isinstance(error, TooManyUnreadableError):
                raise
            return None
        return metrics

    def _update_precise_bn(self, model: nn.Module, step: Step) -> None:
        rank, size = self._world.rank, self._world.size
        loader = precise_bn_loader(self._recipe, self._dataset, self._schedule, step, rank, size)
        update_precise_bn(
            model,
            self._stop.between(loader, len(loader)),
            self._transform,
            self._world,
            self._autocast,
            self._schedule.base.batch,
        )

    def _metrics(self, model: nn.Module) -> dict[str, float]:
        rank, size = self._world.rank, self._world.size
        local = max(1, self._schedule.base.batch // size)
        loader = evaluation_loader(self._recipe, self._videos, local, rank, size)
        found = evaluate(
            model,
            self._stop.between(loader, evaluation_rounds(len(self._videos), local, size)),
            self._transform,
            self._world,
            num_videos=len(self._videos.videos),
            num_clips=len(self._videos) // len(self._videos.videos),
            num_classes=self._recipe.model.num_classes,
            multi_label=self._recipe.data.multi_label,
            ensemble=self._recipe.data.ensemble_method,
            autocast=self._autocast,
            max_bad=self._recipe.data.max_bad_fraction,
            named=self._unreadable,
        )
        return {name: round(value, 4) for name, value in found.metrics.items()}
