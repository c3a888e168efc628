"""Iterations after which a run evaluates and saves checkpoints, and the FLOPs of evaluations."""

from __future__ import annotations

import logging

from multigrid import Schedule, schedule_cost
from multigrid.cost import FlopsPerClip
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.plan.flops import TRAINING_FACTOR

logger = logging.getLogger(__name__)


def evaluation_iterations(recipe: Recipe, schedule: Schedule) -> list[int]:
    """Return when to evaluate, as numbers of finished iterations in ascending order.

    With a long cycle, each phase has MULTIGRID.EVAL_FREQ evaluations. Without a long cycle, there
    is an evaluation after every TRAIN.EVAL_PERIOD epochs and at the end of the training.
    """
    if not recipe.multigrid.long_cycle:
        return epoch_ends(recipe.train.eval_period, schedule)
    times = recipe.multigrid.eval_freq
    ends = {
        phase.start + max(1, round(phase.iterations * (k + 1) / times))
        for phase in schedule.phases
        for k in range(times)
    }
    return sorted(ends)


def epoch_ends(epochs: int, schedule: Schedule) -> list[int]:
    """Return when every `epochs` epochs end, as numbers of finished iterations.

    The end of the training is always included.
    """
    period = epochs * schedule.num_videos
    ends = range(period, schedule.clips + 1, period)
    return sorted({*map(schedule.first_iteration_after, ends), schedule.iterations})


def checkpoint_iterations(recipe: Recipe, schedule: Schedule) -> frozenset[int]:
    """Return when to save checkpoints, as numbers of finished iterations.

    Checkpoints are saved after every TRAIN.CHECKPOINT_PERIOD epochs and at the end of each phase.
    """
    return phase_ends(schedule).union(epoch_ends(recipe.train.checkpoint_period, schedule))


def phase_ends(schedule: Schedule) -> frozenset[int]:
    """Return when the phases end, as numbers of finished iterations."""
    return frozenset(phase.stop for phase in schedule.phases)


def affordable_evaluations(
    recipe: Recipe, schedule: Schedule, clips: int, flops_per_clip: FlopsPerClip
) -> list[int]:
    """Return when to evaluate within the limit TRAIN.EVAL_MAX_SHARE.

    If all `evaluation_iterations` together would exceed this share of the training FLOPs, return an
    evenly spaced subset that includes the last evaluation. The limit is in FLOPs instead of
    seconds, so that all processes and resumed runs choose the same evaluations.

    Args:
        recipe: The recipe.
        schedule: The schedule of the recipe.
        clips: Number of clips in the validation set.
        flops_per_clip: Function from (frames, crop) to the training FLOPs of one clip.
    """
    asked = evaluation_iterations(recipe, schedule)
    share = recipe.train.eval_max_share
    if not share:
        return asked
    one = evaluation_flops(recipe, schedule, clips, flops_per_clip)
    training = schedule_cost(schedule, flops_per_clip).flops or 0.0
    if one * len(asked) <= share * training or len(asked) == 1:
        return asked
    kept = max(1, int(share * training / one))
    logger.info(
        "%d evaluations would take %.0f %% of the training FLOPs. TRAIN.EVAL_MAX_SHARE keeps %d of "
        "them (%.0f %%), including the last one. To keep all, set TRAIN.EVAL_MAX_SHARE 0.",
        *(len(asked), 100 * one * len(asked) / training, kept, 100 * one * kept / training),
    )
    return [asked[len(asked) * (k + 1) // kept - 1] for k in range(kept)]


def evaluation_flops(
    recipe: Recipe, schedule: Schedule, clips: int, flops_per_clip: FlopsPerClip
) -> float:
    """Return the FLOPs of one evaluation of `clips` clips, including the FLOPs of precise BN."""
    base = schedule.base
    if recipe.bn.use_precise_stats:
        batches = min(recipe.bn.num_batches_precise, schedule.num_videos // base.batch)
        clips += max(1, batches) * base.batch
    models = 2 if recipe.model.ema_decay else 1
    return models * clips * flops_per_clip(base.frames, base.crop) / TRAINING_FACTOR


def multi_view_flops(recipe: Recipe, videos: int, flops_per_clip: FlopsPerClip) -> float:
    """Return the FLOPs of the multi-view test on `videos` videos, or 0 with TEST.ENABLE False."""
    test = recipe.test
    views = test.enable * test.num_ensemble_views * test.num_spatial_crops
    models = 2 if recipe.model.ema_decay else 1
    forward = flops_per_clip(recipe.data.num_frames, recipe.data.test_crop_size) / TRAINING_FACTOR
    return models * videos * views * forward
