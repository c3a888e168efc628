"""Validation and multi-view testing, both with the frames and crop size of the baseline."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from multigrid import (
    GroupedBatchNorm3d,
    Schedule,
    ScheduleStep,
    average_running_stats,
    set_group_size,
)
from multigrid.batchnorm import channel_moments
from multigrid.micro_batches import select_clips
from slowfast_patches.config.metrics import EMA, with_suffix
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.loader import (
    build_dataset,
    evaluation_loader,
    evaluation_rounds,
    precise_bn_loader,
)
from slowfast_patches.datasets.protocol import VideoDataset
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.layers.dropout import seed_dropout
from slowfast_patches.models.solver import autocast
from slowfast_patches.tasks import task_of
from slowfast_patches.tasks.scores import Evaluation
from slowfast_patches.train.hooks import log_unreadable
from slowfast_patches.train.record.log import terminal_bar
from slowfast_patches.utils.distributed import World, gather_objects, sum_over_ranks


@torch.no_grad()
def evaluate(
    model: nn.Module,
    recipe: Recipe,
    dataset: Any,
    batch_size: int,
    world: World,
    stop: StopRequest | None = None,
) -> Evaluation:
    """Score all videos of a split, and compute the metrics.

    The score of a video is the mean or the maximum over its readable clips. Each rank reads and
    scores its share of the clips. All ranks return the same result.

    Args:
        model: The model. It is set to evaluation mode.
        recipe: The recipe. It determines how clips are read and how their scores are combined.
        dataset: The data set of the split.
        batch_size: Number of clips in each forward pass of a rank.
        world: Rank, world size and device of this process.
        stop: Stop requests, which are checked between mini-batches. None ignores stop requests.

    Raises:
        RunError: No video can be read, or a larger share than DATA.MAX_BAD_FRACTION
            cannot be read.
        TrainingInterruptedError: The run was asked to stop.
        ValueError: The metric cannot be computed, for example because a score is NaN.
    """
    model.eval()
    transform = InputTransform.of_recipe(recipe, world.device)
    batches: Iterable[Any] = evaluation_loader(recipe, dataset, batch_size, world.rank, world.size)
    rounds = evaluation_rounds(recipe, dataset, batch_size, world.size)
    if stop is not None:
        batches = stop.between(batches, rounds)
    task = task_of(recipe)
    scores = task.scores(dataset, world.device)
    failures = dict[str, str]()
    with terminal_bar("evaluation", rounds, is_main=world.is_main) as bar:
        for batch in batches:
            failures |= batch["failures"]
            count = len(batch["videos"])
            for first in range(0, count, batch_size):
                part = select_clips(batch, slice(first, first + batch_size), count)
                arguments = task.arguments(part, transform, world.device)
                with autocast(recipe, world.device):
                    predictions = model(*arguments)
                scores.add(part, predictions)
            bar.update()
    for path, reason in itertools.chain(*map(dict.items, gather_objects(failures))):
        if world.is_main:
            log_unreadable(path, reason, "unreadable clips are not scored")
    result: Evaluation = scores.result()
    return result


class Validation:
    """Validate during a training, after precise BN if BN.USE_PRECISE_STATS is True.

    Args:
        recipe: The recipe of the training.
        world: Rank, world size and device of this process.
        stop: Stop requests, which are checked between mini-batches.
        training_set: The data set of the training split, for precise BN.
        schedule: The schedule of the training.
        validation_set: The data set of the validation split, if it has been read.

    Attributes:
        validation_set: The data set of the validation split.
    """

    def __init__(
        self,
        recipe: Recipe,
        world: World,
        stop: StopRequest,
        training_set: Any,
        schedule: Schedule,
        validation_set: VideoDataset | None = None,
    ) -> None:
        self._recipe = recipe
        self._world = world
        self._stop = stop
        self._training_set = training_set
        self._schedule = schedule
        self.validation_set = validation_set or build_dataset(recipe, "val")

    def __call__(self, models: nn.ModuleList, step: ScheduleStep) -> dict[str, float]:
        """Return the metrics and the loss, with MODEL.EMA_DECAY also of the averaged weights.

        The BN running statistics are first averaged over the processes, or replaced by precise BN
        if BN.USE_PRECISE_STATS is True. Errors are those of `evaluate`.

        Args:
            models: The model, optionally followed by the model with the averaged weights.
            step: The last training step.

        Returns:
            Maps the name of a metric to its value. Names end in "_ema" for the averaged weights.
        """
        parts = self._world.size * self._recipe.solver.accumulation_steps
        clips = max(1, self._schedule.base.batch // parts)
        metrics = dict[str, float]()
        for model, suffix in zip(models, ("", EMA), strict=False):
            average_running_stats(model)
            if self._recipe.bn.use_precise_stats:
                self._update_precise_bn(model, step)
            evaluation = evaluate(
                model, self._recipe, self.validation_set, clips, self._world, self._stop
            )
            metrics |= with_suffix(evaluation.metrics, suffix)
            if evaluation.loss is not None:
                metrics |= with_suffix({"loss": evaluation.loss}, suffix)
        return {name: round(value, 4) for name, value in metrics.items()}

    def _update_precise_bn(self, model: nn.Module, step: ScheduleStep) -> None:
        """Recompute the running statistics of a model with precise BN, on training clips."""
        recipe, world, schedule = self._recipe, self._world, self._schedule
        loader = precise_bn_loader(
            recipe, self._training_set, schedule, step, world.rank, world.size
        )
        batches = self._stop.between(loader, len(loader))
        update_precise_bn(model, batches, recipe, world, schedule.base.batch)


@torch.no_grad()
def update_precise_bn(
    model: nn.Module, batches: Iterable[Any], recipe: Recipe, world: World, global_batch: int
) -> None:
    """Replace the running statistics by the mean and variance over many mini-batches.

    This is precise BN (Wu and Johnson, 2021) over all processes. fvcore's `update_bn_stats` does
    not support several processes. The forward passes normalise over BN groups of `global_batch`
    clips, which may extend over several processes. Frozen BN layers are unchanged. All BN layers
    must be `GroupedBatchNorm3d`, and every process must have called `form_bn_process_groups`.

    Args:
        model: The model. It is set to training mode.
        batches: Mini-batches of equal size. Every process must have the same number of them.
        recipe: The recipe of the model.
        world: Rank, world size and device of this process.
        global_batch: Number of clips in a BN group.
    """
    model.train()
    # For each layer, sum E[x] and E[x²] of the mini-batches in double precision.
    sums = {
        norm: torch.zeros(2, norm.num_features, dtype=torch.float64, device=world.device)
        for norm in model.modules()
        if isinstance(norm, GroupedBatchNorm3d) and norm.track_running_stats and norm.training
    }
    if not sums:
        return
    count = torch.zeros((), device=world.device)

    def observe(norm: GroupedBatchNorm3d, inputs: tuple[Tensor, ...]) -> None:
        sums[norm] += channel_moments(inputs[0])

    set_group_size(model, global_batch)
    seed_dropout(model, None)
    task = task_of(recipe)
    transform = InputTransform.of_recipe(recipe, world.device)
    hooks = [norm.register_forward_pre_hook(observe) for norm in sums]
    try:
        for batch in batches:
            arguments = task.arguments(batch, transform, world.device)
            with autocast(recipe, world.device):
                model(*arguments)
            count += 1
    finally:
        for hook in hooks:
            hook.remove()
    sum_over_ranks(count)
    for norm, moments in sums.items():
        mean, square = sum_over_ranks(moments) / count
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(mean)
        norm.running_var.copy_((square - mean.square()).clamp_(min=0))
