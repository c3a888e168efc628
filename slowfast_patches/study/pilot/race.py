"""Trainings of a pilot: the baseline and several cycles train for equal times and are scored.

All start from the same weights and read the same stream of clips. A cycle spends three fifths of
its time on coarse shapes, in equal parts. It spends the rest at the baseline's shape, where its
learning rate decays to zero, like that of the baseline. The last part is needed: a network that was
trained on 32² pixels only may fail at 64², and recovers within some dozen iterations
(projects/real_video/README.md).
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from multigrid import GENTLE, PAPER, Cycles, Schedule, Shape, SteppedRate
from slowfast_patches.config import check_recipe
from slowfast_patches.config.metrics import metric_names
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import scale_to_world_size
from slowfast_patches.config.schedule import (
    check_world_size,
    cycle_keys,
    schedule_of,
    without_multigrid,
)
from slowfast_patches.datasets.lists.dataset_lists import label_counts
from slowfast_patches.datasets.loader import build_dataset, precise_bn_loader, training_loader
from slowfast_patches.launch.launch import resolve
from slowfast_patches.launch.placement import find_placement
from slowfast_patches.models.build import build_model
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.solver import Precision
from slowfast_patches.models.weights import load_weights
from slowfast_patches.plan.flops import check_shapes
from slowfast_patches.study.pilot.report import Pilot, PilotArm, Stage
from slowfast_patches.tasks import task_of
from slowfast_patches.train.evaluate import evaluate
from slowfast_patches.train.running_stats import update_precise_bn
from slowfast_patches.train.step import Stepper
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.tables import format_duration

logger = logging.getLogger(__name__)

_COARSE = 0.6
"""Share of a cycle's time at coarse shapes.

It is about what MULTIGRID.EQUAL_TIME gives them in a training with as many clips as the baseline.
"""

_DECAY = 1 / 3
"""Share of an arm's time, at its end, in which the learning rate decays to zero."""

_WARMUP = 0.1
"""Share of an arm's time in which the learning rate warms up."""

_SCORED = 300
"""Largest number of videos that arms are scored on."""

_PRECISE = 6
"""Largest number of mini-batches for precise BN. These are enough to compare arms."""

_SMALLEST_CROP = 32
"""Smallest crop that is tried, the stride of the last feature map."""

_ARM = 300
"""Length of an arm, in iterations of the baseline.

Two fifths of the time follow the last change of shape. They have room for slightly more than
`MIN_FINAL_ITERATIONS` iterations.
"""

_SHAPES = 4
"""Largest number of shapes of a cycle. Each one takes some seconds to start."""

_TRIED = 3.0
"""Seconds for which steps are timed."""

CYCLES = (
    GENTLE,
    replace(GENTLE, long_cycle=((1.0, 0.5), (1.0, 1.0)), name="GENTLE, all frames"),
    replace(GENTLE, long_cycle=((0.5, 1.0), (1.0, 1.0)), name="GENTLE, all pixels"),
    replace(PAPER, short_cycle=(), epoch_factor=1.0, name="PAPER, long cycle alone"),
)
"""Cycles to try, in this order, as far as the time allows."""


class ShortBaselineError(ValueError):
    """Error raised when a whole baseline takes no longer than its pilot.

    Args:
        message: text of the error.
        cycles: cycles to train beside the baseline instead of a pilot.
    """

    def __init__(self, message: str, cycles: Cycles) -> None:
        super().__init__(message)
        self.cycles = cycles


def run_pilot(recipe: Recipe, seconds: float | None, device: torch.device) -> Pilot:
    """Train the baseline of a recipe and `CYCLES` for equal times, and score them.

    The pilot is one process, whatever the recipe asks for. A cycle whose loss is not finite is
    left out.

    Args:
        recipe: the recipe, with or without multigrid.
        seconds: time for the whole pilot, or None for the default of `pilot_seconds`.
        device: where to train.

    Raises:
        ValueError: As for `pilot_seconds`, or the recipe cannot train, or no cycle fits it.
        FloatingPointError: The loss of the baseline or of every cycle is not finite.
        TooManyUnreadableError: Too many videos cannot be read.
    """
    processes = recipe.world_size
    race = _Race(one_process(recipe), device)
    schedule = race.schedule
    fitting = race.cycles()
    began = time.monotonic()
    step, starting = race.time_baseline()
    baseline_seconds = schedule.clips / processes * step.seconds_per_clip
    scored = len(race.scored) + race.recipe.bn.num_batches_precise * schedule.base.batch
    besides = _SHAPES * starting + scored * step.seconds_per_clip
    arm_seconds = besides + _ARM * step.seconds / step.iterations
    seconds = pilot_seconds(seconds, 2 * arm_seconds, baseline_seconds, fitting[0])
    tried = fitting[: int(seconds / arm_seconds) - 1]
    share = seconds / (len(tried) + 1) - besides
    logger.info(
        "Training each of these for %s: baseline, %s. The pilot takes about %s, the whole baseline "
        "%s",
        *(format_duration(share), "; ".join(cycles.name for cycles in tried)),
        *(format_duration(seconds), format_duration(baseline_seconds)),
    )
    baseline = race.run(None, share)
    arms = list[PilotArm]()
    for cycles in tried:
        try:
            arms.append(race.run(cycles, share))
        except FloatingPointError as error:
            logger.warning("%s is left out: %s", cycles.name, error)
            failure = error
    if not arms:
        raise failure
    return Pilot(
        recipe=race.recipe,
        schedule=schedule,
        arms=(baseline, *arms),
        metric=metric_names(recipe)[0],
        videos=len(race.scored),
        chance=0.0 if recipe.data.multi_label else race.scored.chance(),
        processes=processes,
        baseline_seconds=schedule.clips / processes * baseline.stages[0].seconds_per_clip,
        first_estimate=baseline_seconds,
        seconds=time.monotonic() - began,
    )


def pilot_seconds(
    asked: float | None, least: float, baseline: float, cycles: Cycles = GENTLE
) -> float:
    """Return the seconds that a pilot takes.

    Args:
        asked: what the user asks for. None means a tenth of the baseline, but no less than `least`.
        least: the shortest pilot that is meaningful.
        baseline: seconds of the whole baseline.
        cycles: cycles to train instead if the baseline is too short for a pilot.

    Raises:
        ShortBaselineError: The whole baseline takes no longer than the pilot.
        ValueError: `asked` is less than `least`.
    """
    seconds = max(least, baseline / 10) if asked is None else asked
    if baseline <= (longest := max(seconds, least)):
        raise ShortBaselineError(
            f"No pilot is needed: the whole baseline takes about {format_duration(baseline)}, and "
            f"a pilot {format_duration(longest)}. Train both instead. That is more conclusive.",
            cycles,
        )
    if seconds < least:
        # Add a margin, because the next measurement of the step time may be longer.
        minutes = math.ceil(1.2 * least / 6) / 10
        raise ValueError(
            f"--minutes {seconds / 60:.3g} is too short for a result. Give --minutes {minutes:g} "
            f"or more (the whole baseline takes about {format_duration(baseline)})."
        )
    return seconds


def one_process(recipe: Recipe) -> Recipe:
    """Return the baseline of a recipe for one process.

    It has the share of the mini-batch that each process of the recipe has, and the learning rate is
    scaled to that many clips.

    Raises:
        ValueError: The recipe cannot train or detects boxes, or a launcher has started several
            processes.
    """
    placement = find_placement(recipe, os.environ)
    if placement.launcher != "run_net" and placement.size > 1:
        raise ValueError(
            f"The pilot is one process, but {placement.launcher} has started {placement.size}. "
            "Start it without a launcher, with NUM_GPUS and NUM_SHARDS of the training."
        )
    if recipe.detection.enable:
        raise ValueError(
            "The pilot scores videos, but the recipe detects boxes (DETECTION.ENABLE True). Train "
            "both to the end with multigrid-compare."
        )
    recipe = resolve(without_multigrid(recipe))
    processes = recipe.world_size
    check_recipe(recipe)
    batch = recipe.base_shape.batch
    share = recipe.replaced(
        {
            "NUM_SHARDS": 1,
            "NUM_GPUS": min(1, recipe.num_gpus),
            "PROCESSES_PER_MACHINE": 1,
            "TRAIN.BATCH_SIZE": batch // processes,
            "SOLVER.REFERENCE_WORLD_SIZE": 0,
            "SOLVER.REFERENCE_BATCH_SIZE": batch,
            "BN.NUM_BATCHES_PRECISE": min(_PRECISE, recipe.bn.num_batches_precise),
        }
    )
    return scale_to_world_size(share)


class _Sample(Subset[Any]):
    """Random sample of a validation set, as a data set with its own numbering."""

    def __init__(self, dataset: Any, seed: int) -> None:
        drawn = np.random.default_rng(seed).permutation(len(dataset.videos))[:_SCORED]
        super().__init__(dataset, sorted(drawn.tolist()))
        self.videos = [dataset.videos[number] for number in self.indices]

    def __getitems__(self, numbers: list[int]) -> Any:
        batch: Any = super().__getitems__(numbers)
        videos = torch.searchsorted(torch.tensor(self.indices), batch["videos"])
        return {**batch, "videos": videos}

    def chance(self) -> float:
        """Return the share of the most common class in per cent, or 0 without labels."""
        labels = [getattr(video, "label", None) for video in self.videos]
        counts = Counter(label for label in labels if label is not None)
        return 100 * max(counts.values(), default=0) / len(self)


class _Race:
    """Trains arms from the same initial weights on the same stream of clips."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe = recipe
        self._world = World(0, 1, device)
        self.scored = _Sample(build_dataset(recipe, "val"), recipe.rng_seed)
        self.schedule = schedule_of(recipe, len(build_dataset(recipe, "train").videos))

    def cycles(self) -> list[Cycles]:
        """Return the `CYCLES` that a whole training can use.

        Raises:
            ValueError: The baseline cannot train, or no cycle can be used.
        """
        self._check({})
        fitting = list[Cycles]()
        for cycles in CYCLES:
            try:
                self._check(cycle_keys(cycles))
                fitting.append(cycles)
            except ValueError as error:
                logger.info("%s is not tried: %s", cycles.name, error)
                why = error
        if not fitting:
            raise ValueError(f"No cycle fits the shape {self.schedule.base}: {why}")
        return fitting

    def _check(self, keys: Mapping[str, object]) -> None:
        recipe = self.recipe.replaced(keys)
        check_recipe(recipe)
        schedule = schedule_of(recipe, self.schedule.num_videos)
        check_world_size(recipe, schedule)
        smallest = min(schedule.shapes, key=lambda shape: shape.crop)
        if keys and smallest.crop < _SMALLEST_CROP:
            raise ValueError(
                f"its crops of {smallest.crop} pixels ({smallest}) are below {_SMALLEST_CROP}. "
                "Give a larger DATA.TRAIN_CROP_SIZE."
            )
        check_shapes(recipe, schedule.shapes)

    def time_baseline(self) -> tuple[Stage, float]:
        """Time some steps of the baseline, and return them and the seconds that starting takes."""
        stepper = self._stepper(self.recipe)
        began = time.monotonic()
        stage = self._train(stepper, self.schedule.base, _TRIED, 0, lambda _: 0.0)
        return stage, time.monotonic() - began - stage.seconds

    def run(self, cycles: Cycles | None, seconds: float) -> PilotArm:
        """Train the baseline (None) or a cycle from the start for some seconds, and score it."""
        stepper = self._stepper(self.recipe.replaced(cycle_keys(cycles) if cycles else {}))
        shapes = schedule_of(stepper.recipe, self.schedule.num_videos).shapes
        coarse = [_COARSE * seconds / len(shapes[1:]) for _ in shapes[1:]]
        parts = [*coarse, seconds - sum(coarse)]
        stages = list[Stage]()
        for shape, part in zip(shapes, parts, strict=True):
            done = sum(parts[: len(stages)])
            clips = sum(stage.clips for stage in stages)
            rate = partial(_rate, done=done, whole=seconds)
            stages.append(self._train(stepper, shape, part, clips, rate))
        arm = PilotArm(cycles, tuple(stages), self._score(stepper))
        logger.info("%s: %.1f %%", arm.name, arm.score)
        return arm

    def _stepper(self, recipe: Recipe) -> Stepper:
        torch.manual_seed(recipe.rng_seed)
        start = recipe.train
        model = build_model(recipe, grouped_bn=True).to(self._world.device)
        if path := start.checkpoint_file_path:
            load_weights(model, path, kind=start.checkpoint_type, inflate=start.checkpoint_inflate)
        counts = None
        if recipe.solver.class_weights:
            counts = label_counts(recipe, build_dataset(recipe, "train").videos)
        return Stepper(recipe, model, self._world.device, counts)

    def _train(
        self,
        stepper: Stepper,
        shape: Shape,
        seconds: float,
        first_clip: int,
        rate: Callable[[float], float],
    ) -> Stage:
        """Train at one shape for some time.

        The clock starts after the first iteration, which takes longer.

        Args:
            stepper: the model and its optimizer.
            shape: the shape of all mini-batches.
            seconds: how long to train.
            first_clip: where to start in the stream of clips.
            rate: function from the seconds that have passed to a factor of the learning rate.

        Raises:
            FloatingPointError: The loss is not finite.
        """
        schedule = _endless(stepper.recipe, self.schedule.num_videos, shape, first_clip)
        data = build_dataset(stepper.recipe, "train")
        batches = iter(training_loader(stepper.recipe, data, schedule, 0, 0, 1))
        losses = list[float]()
        began = math.nan
        spent = 0.0
        for step, batch in zip(schedule.steps(), batches, strict=True):
            now = step._replace(lr=step.lr * rate(spent))
            losses.append(float(stepper(now, batch).loss))
            if not math.isfinite(losses[-1]):
                raise FloatingPointError(
                    f"The loss is {losses[-1]} after {len(losses)} iterations (shape {shape}, LR "
                    f"{now.lr:.4g}). Use a lower SOLVER.BASE_LR."
                )
            if len(losses) == 1:
                began = time.monotonic()
            elif (spent := time.monotonic() - began) >= seconds:
                break
        counted = len(losses) - 1
        return Stage(shape, spent, counted, fmean(losses[-max(1, counted // 10) :]))

    def _score(self, stepper: Stepper) -> float:
        """Return the metric of the sample at the baseline's shape, after precise BN there."""
        recipe = self.recipe
        world = self._world
        batch = self.schedule.base.batch
        data = build_dataset(recipe, "train")
        loader = precise_bn_loader(recipe, data, self.schedule, self.schedule.at(0), 0, 1)
        transform = InputTransform.of_recipe(recipe, world.device)
        autocast = Precision(recipe, world.device).autocast
        task = task_of(recipe)
        arguments = partial(task.arguments, transform=transform, device=world.device)
        update_precise_bn(stepper.model, loader, arguments, world, autocast, batch)
        metrics = evaluate(stepper.model, recipe, self.scored, batch, world).metrics
        return metrics[metric_names(recipe)[0]]


def _endless(recipe: Recipe, num_videos: int, shape: Shape, first_clip: int) -> Schedule:
    """Return a practically endless schedule of one shape, at the full learning rate."""
    schedule = schedule_of(recipe, num_videos)
    phase = next(phase for phase in schedule.phases if phase.base_shape == shape)
    phase = replace(phase, start=0, stop=10**9, baseline_epochs=(0.0, 1.0), first_clip=first_clip)
    rate = SteppedRate((1.0,), (recipe.solver.base_lr,))
    return replace(schedule, epochs=1.0, learning_rate=rate, phases=(phase,))


def _rate(seconds: float, *, done: float, whole: float) -> float:
    """Return the factor of the learning rate at a time.

    Args:
        seconds: time since the stage began.
        done: time of the arm before this stage.
        whole: time of the whole arm.
    """
    part = (done + seconds) / whole
    return max(0.01, min(1.0, part / _WARMUP, (1 - part) / _DECAY))
