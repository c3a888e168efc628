"""Iterations after which a run evaluates and saves, and the cost of evaluations and the test."""

from __future__ import annotations

import logging

from multigrid import Schedule, schedule_cost
from multigrid.cost import FlopsPerClip
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.plan.flops import TRAINING_FACTOR

logger = logging.getLogger(__name__)


def evaluation_iterations(recipe: Recipe, schedule: Schedule) -> list[int]:
    """Return the numbers of finished iterations after which the recipe asks for an evaluation.

    These are MULTIGRID.EVAL_FREQ in each phase of a long cycle. Without a long cycle they are the
    ends of every TRAIN.EVAL_PERIOD epochs, and the end.
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
    """Return the first iteration after each `epochs` epochs, and the last of all."""
    period = epochs * schedule.num_videos
    ends = range(period, schedule.clips + 1, period)
    return sorted({*map(schedule.first_iteration_after, ends), schedule.iterations})


def checkpoint_iterations(recipe: Recipe, schedule: Schedule) -> frozenset[int]:
    """Return the numbers of finished iterations at which to save.

    These are every CHECKPOINT_PERIOD epochs and the end of each phase.
    """
    return phase_ends(schedule).union(epoch_ends(recipe.train.checkpoint_period, schedule))


def phase_ends(schedule: Schedule) -> frozenset[int]:
    """Return the numbers of finished iterations at which a phase ends."""
    return frozenset(phase.stop for phase in schedule.phases)


def affordable_evaluations(
    recipe: Recipe, schedule: Schedule, clips: int, flops_per_clip: FlopsPerClip
) -> list[int]:
    """Return the `evaluation_iterations`, thinned to TRAIN.EVAL_MAX_SHARE of the training's FLOPs.

    FLOPs are counted, not seconds, so that every process and every resumed run agrees. The
    evaluations that remain are evenly spaced among those asked for. The last one always remains.

    Args:
        recipe: the recipe.
        schedule: its schedule.
        clips: number of clips in the validation set.
        flops_per_clip: function from (frames, crop) to the training FLOPs of a clip.
    """
    asked = evaluation_iterations(recipe, schedule)
    share = recipe.train.eval_max_share
    if not share:
        return asked
    one = evaluation_flops(recipe, schedule, clips, flops_per_clip)
    training = schedule_cost(schedule, flops_per_clip).flops or 0.0
    if one * len(asked) <= share * training:
        return asked
    kept = max(1, int(share * training / one))
    logger.info(
        "%d evaluations would cost %.0f %% of the training. Keeping %d (%.0f %%), the last among "
        "them. TRAIN.EVAL_MAX_SHARE 0 keeps all",
        *(len(asked), 100 * one * len(asked) / training, kept, 100 * one * kept / training),
    )
    return [asked[len(asked) * (k + 1) // kept - 1] for k in range(kept)]


def evaluation_flops(
    recipe: Recipe, schedule: Schedule, clips: int, flops_per_clip: FlopsPerClip
) -> float:
    """Return the FLOPs of one evaluation of `clips` clips, including those of precise BN."""
    base = schedule.base
    if recipe.bn.use_precise_stats:
        batches = min(recipe.bn.num_batches_precise, schedule.num_videos // base.batch)
        clips += max(1, batches) * base.batch
    models = 2 if recipe.model.ema_decay else 1
    return models * clips * flops_per_clip(base.frames, base.crop) / TRAINING_FACTOR


def multi_view_flops(recipe: Recipe, videos: int, flops_per_clip: FlopsPerClip) -> float:
    """Return the FLOPs of the multi-view test of `videos` videos; 0 with TEST.ENABLE False."""
    test = recipe.test
    views = test.enable * test.num_ensemble_views * test.num_spatial_crops
    models = 2 if recipe.model.ema_decay else 1
    forward = flops_per_clip(recipe.data.num_frames, recipe.data.test_crop_size) / TRAINING_FACTOR
    return models * videos * views * forward
