"""Iterations after which a run evaluates and saves checkpoints, and the FLOPs of evaluations."""

from __future__ import annotations

import math

from multigrid import Schedule, schedule_cost
from multigrid.config_values import phase_evaluations
from multigrid.cost import FlopsPerClip
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import count_list
from slowfast_patches.plan.flops import TRAINING_FACTOR


def evaluation_iterations(recipe: Recipe, schedule: Schedule) -> list[int]:
    """Return the numbers of finished iterations after which to evaluate, in ascending order.

    With a long cycle or stages, each phase has MULTIGRID.EVAL_FREQ evaluations. Without them, or if
    MULTIGRID.EVAL_FREQ is 0, there is an evaluation after every TRAIN.EVAL_PERIOD epochs and at the
    end of the training.
    """
    times = recipe.multigrid.eval_freq
    if not (recipe.multigrid.long_cycle or recipe.multigrid.stages) or not times:
        return epoch_ends(recipe.train.eval_period, schedule)
    return sorted(set[int]().union(*(phase_evaluations(p, times) for p in schedule.phases)))


def epoch_ends(epochs: int, schedule: Schedule) -> list[int]:
    """Return the numbers of finished iterations after each `epochs` epochs.

    The end of the training is always included.
    """
    period = epochs * schedule.num_videos
    ends = range(period, schedule.clips, period)
    return sorted({*map(schedule.first_iteration_after, ends), schedule.iterations})


def checkpoint_iterations(recipe: Recipe, schedule: Schedule) -> frozenset[int]:
    """Return the numbers of finished iterations after which to save checkpoints.

    Checkpoints are saved after every TRAIN.CHECKPOINT_PERIOD epochs and at the end of each phase.
    """
    return phase_ends(schedule).union(epoch_ends(recipe.train.checkpoint_period, schedule))


def phase_ends(schedule: Schedule) -> frozenset[int]:
    """Return the numbers of finished iterations at the ends of the phases."""
    return frozenset(phase.stop for phase in schedule.phases)


def evaluation_share(
    recipe: Recipe, schedule: Schedule, flops_per_clip: FlopsPerClip
) -> tuple[int, float]:
    """Return the number of evaluations, and the FLOPs of the evaluations and the test.

    The FLOPs are a fraction of the training FLOPs, and include precise BN. The number of clips is
    taken from the lists. Without list files, the FLOPs are 0.

    Args:
        recipe: The recipe.
        schedule: The schedule of the recipe.
        flops_per_clip: Function from (frames, crop) to the training FLOPs of one clip.
    """
    base = schedule.base
    count = len(evaluation_iterations(recipe, schedule))
    validated = count_list(recipe, "val") or 0
    if validated and recipe.bn.use_precise_stats:
        batches = min(recipe.bn.num_batches_precise, schedule.num_videos // base.batch)
        validated += max(1, batches) * base.batch
    test = recipe.test
    views = test.enable * test.num_ensemble_views * test.num_spatial_crops
    tested = views * (count_list(recipe, "test") or 0)
    flops = count * validated * flops_per_clip(base.frames, base.crop)
    flops += tested * flops_per_clip(recipe.data.num_frames, recipe.data.test_crop_size)
    models = 2 if recipe.model.ema_decay else 1
    training = schedule_cost(schedule, flops_per_clip).flops or math.inf
    return count, models * flops / TRAINING_FACTOR / training
