"""The race of a pilot: what trains each arm for some seconds, and scores it."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import torch

from multigrid import Phase, Schedule, Shape, SteppedRate, batch_rate_factor, scale_shape
from slowfast_patches.config import check_recipe
from slowfast_patches.config.check import check_frames
from slowfast_patches.config.metrics import metric_names
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import (
    check_world_size,
    rates_of_batch,
    schedule_of,
    without_multigrid,
)
from slowfast_patches.datasets.loader import build_dataset, precise_bn_loader, training_loader
from slowfast_patches.launch.launch import for_processes, processes_of
from slowfast_patches.launch.placement import find_placement
from slowfast_patches.models.build import build_model
from slowfast_patches.models.flops import check_shapes
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.solver import Precision
from slowfast_patches.models.weights import load_weights
from slowfast_patches.study.pilot.verdict import Arm, Cycle, Pilot, Stage
from slowfast_patches.study.pilot.videos import Some, Split
from slowfast_patches.train.evaluate import evaluate
from slowfast_patches.train.running_stats import update_precise_bn
from slowfast_patches.train.step import Stepper
from slowfast_patches.utils.distributed import World

__all__ = ["CYCLES", "one_process", "run_pilot"]

logger = logging.getLogger(__name__)

_COARSE = 0.6
"""Part of a cycle's seconds that is spent on coarse shapes: about what MULTIGRID.EQUAL_TIME gives
them in a training of as many clips as the baseline's."""
_FALL = 1 / 3
"""Part of an arm's seconds, at its end, in which the rate falls to nothing."""
_WARMUP = 0.1
"""Part of an arm's seconds in which the rate rises."""
_MOST_VIDEOS, _FEWEST_VIDEOS = 300, 50
"""Videos that arms are scored on: standard errors of at most 3 and 7 points."""
_PRECISE = 6
"""Mini-batches for precise BN, which need be no more than decide a race."""
_SCORING = 1 / 3
"""Part of a pilot's time for scoring."""
_FORWARD = 0.45
"""What scoring a clip takes, of what training on it does, where reading is no limit."""
_SMALLEST_CROP = 32
"""Pixels of the input to one of the last feature map's."""
_ARM = 200
"""Iterations of the baseline in whose time an arm is past the start, where nothing is learned yet:
on the words it takes some hundred (docs/proof.md)."""
_FAIR = 0.75
"""The least that an arm gets of what the one before had."""
_TRIED = 3.0
"""Seconds in which a step is timed, and the least that an arm gets."""

_GENTLE = {
    "MULTIGRID.BATCH_EXPONENT": 0.5,
    "MULTIGRID.EQUAL_TIME": True,
    "MULTIGRID.KEEP_FIELD_OF_VIEW": True,
}
_PAPER = {
    "MULTIGRID.BATCH_EXPONENT": 1.0,
    "MULTIGRID.EQUAL_TIME": False,
    "MULTIGRID.KEEP_FIELD_OF_VIEW": False,
}
_HALF = math.sqrt(0.5)

CYCLES: tuple[Cycle, ...] = (
    Cycle("baseline", ()),
    Cycle("time and space", ((0.5, 0.5), (1.0, 0.5)), _GENTLE),
    Cycle("space", ((1.0, 0.5),), _GENTLE),
    Cycle("time", ((0.5, 1.0),), _GENTLE),
    Cycle("paper", ((0.25, _HALF), (0.5, _HALF), (0.5, 1.0)), _PAPER),
)
"""What is tried, in this order, as far as the minutes last; the first is what others must beat."""


def run_pilot(recipe: Recipe, seconds: float | None, device: torch.device) -> Pilot:
    """Race the baseline of a recipe against `CYCLES`, within `seconds` in all.

    None gives a tenth of the baseline's own time, on as many processes as it asks for; the pilot
    is one. As many cycles are tried as get the time of some `_ARM` of the baseline's iterations,
    but always one; none where the seconds do not even suffice to score them. Making an index of
    the videos, where there is none, comes before.

    Raises:
        ValueError: the recipe cannot train, or has no shape that is coarser than its own.
        FloatingPointError: the baseline's loss is not finite; a cycle's puts it out of the race.
        TrainingStoppedError: too many videos cannot be read.
    """
    processes = processes_of(recipe)
    race = _Race(one_process(recipe), device)
    cycles = race.cycles()
    began = time.monotonic()
    tried, starting = race.try_baseline()
    clips = race.schedule.clips / processes
    seconds = clips * tried.seconds_per_clip / 10 if seconds is None else seconds
    arm = _ARM * tried.seconds / tried.iterations
    count = min(len(cycles), max(2, int((1 - _SCORING) * seconds / arm)))
    forward = _FORWARD * tried.seconds_per_clip
    end, share, arms = began + seconds, math.inf, list[Arm]()
    if scored := race.hold_out(int(_SCORING * seconds / (2 * count * forward))):
        for number, cycle in enumerate(cycles[:count]):
            besides = max(3, len(cycle.factors) + 1) * starting + 2 * scored * forward
            left = (end - time.monotonic()) / (count - number) - besides
            if arms and left < _FAIR * share:  # scoring took longer, as where reading is the limit
                logger.warning("%s is not tried: the time is too short", cycle.name)
                arms = arms if len(arms) > 1 else []
                break
            share = min(share, left)
            try:
                arms.append(race.run(cycle, max(share, _TRIED)))
            except FloatingPointError as error:
                if not arms:
                    raise
                logger.warning("%s is out of the race: %s", cycle.name, error)
                continue
            logger.info("%s: %.1f %%", cycle.name, arms[-1].score)
    videos, chance = race.chance()
    base = arms[0].stages if arms else [tried]
    per_clip = sum(stage.seconds for stage in base) / sum(stage.clips for stage in base)
    return Pilot(
        recipe=race.recipe,
        schedule=race.schedule,
        arms=tuple(arms),
        metric=metric_names(recipe)[0],
        videos=videos,
        chance=chance,
        processes=processes,
        baseline_seconds=clips * per_clip,
        seconds=time.monotonic() - began,
    )


def one_process(recipe: Recipe) -> Recipe:
    """The baseline of a recipe, of one process's share of the mini-batch, at the rate of that many
    clips.

    Raises:
        ValueError: the recipe cannot train, or a launcher has started several processes.
    """
    placement = find_placement(recipe, os.environ)
    if placement.launcher != "run_net" and placement.size > 1:
        raise ValueError(
            f"the pilot is one process, and {placement.launcher} has started {placement.size}; "
            "start it by itself, and give NUM_GPUS and NUM_SHARDS of the training"
        )
    recipe = for_processes(without_multigrid(recipe))
    processes = processes_of(recipe)
    check_recipe(recipe, processes)
    recipe, clips = rates_of_batch(recipe), recipe.base_shape.batch // processes
    solver, machines = recipe.solver, recipe.num_shards
    growth = clips / recipe.base_shape.batch * (machines if solver.base_lr_scale_num_shards else 1)
    return recipe.replaced(
        {
            "NUM_SHARDS": 1,
            "NUM_GPUS": min(1, recipe.num_gpus),
            "TRAIN.BATCH_SIZE": clips,
            "SOLVER.BASE_LR": solver.base_lr * batch_rate_factor(growth, solver.batch_rate_rule),
            "SOLVER.BASE_LR_SCALE_NUM_SHARDS": False,
            "SOLVER.REFERENCE_WORLD_SIZE": 0,
            "BN.NUM_BATCHES_PRECISE": min(_PRECISE, recipe.bn.num_batches_precise),
        }
    )


class _Race:
    """Trains arms from the same initial weights on the same stream of clips."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self._world = recipe, World(0, 1, device)
        train, val = (len(build_dataset(recipe, split).videos) for split in ("train", "val"))
        self._counts = train, val
        self._split = self._split_of(_MOST_VIDEOS)
        self.schedule = schedule_of(recipe, train)

    def _split_of(self, videos: int) -> Split:
        """A split that has so many videos to score, if there are; of several labels each, of the
        validation set alone, whose videos have all of theirs."""
        train, val = self._counts
        scored = min(videos, val) if self.recipe.data.multi_label else videos
        return Split.of(train, val, scored, self.recipe.rng_seed)

    def hold_out(self, clips: int) -> int:
        """Score arms on as many videos as `clips` forward passes allow, which precise BN needs too;
        how many of them it takes, 0 where these are too few to tell anything."""
        precise = self.recipe.bn.num_batches_precise * self.schedule.base.batch
        videos = min(max(clips - precise, 1), _MOST_VIDEOS)
        self._split = self._split_of(videos)
        found = len(self._split.validated) + len(self._split.held_out)
        enough = found >= max(2, min(_FEWEST_VIDEOS, sum(self._counts) // 10))
        return found + precise if enough else 0

    def _videos(self, recipe: Recipe) -> tuple[Some, list[Some]]:
        """What is trained on and what is scored, on the recipe's grid."""
        train, split = build_dataset(recipe, "train"), self._split
        scored = [Some(build_dataset(recipe, "val"), split.validated)]
        scored += [Some(train, split.held_out)] if split.held_out else []
        return Some(train, split.trained), scored

    def chance(self) -> tuple[int, float]:
        """How many videos are scored, and the per cent that the commonest class has of them; 0
        where a video has several."""
        scored = self._videos(self.recipe)[1]
        total = sum(map(len, scored))
        if self.recipe.data.multi_label:
            return total, 0.0
        counts = Counter(label for some in scored for label in some.labels() if label is not None)
        return total, 100 * max(counts.values(), default=0) / total

    def cycles(self) -> list[Cycle]:
        """The baseline and those of `CYCLES` that a whole training can have.

        Raises:
            ValueError: there is none; says why.
        """
        fitting = [cycle for cycle in CYCLES if self._fits(cycle)]
        if len(fitting) < 2:
            raise ValueError(
                f"{self.schedule.base} has no coarser shape that the model takes: crops have "
                f"{_SMALLEST_CROP} pixels or more, and frames divide by SLOWFAST.ALPHA"
            )
        found, errors = list[Cycle](), list[ValueError]()
        for cycle in fitting:
            recipe = self.recipe.replaced(cycle.overrides)
            try:
                schedule = schedule_of(recipe, self.schedule.num_videos)
                check_world_size(recipe, schedule, self._world.size)
                check_shapes(recipe, schedule.shapes)
                found.append(cycle)
            except ValueError as error:
                if not found:  # the baseline
                    raise
                logger.info("%s is not tried: %s", cycle.name, error)
                errors.append(error)
        if len(found) < 2:
            raise errors[0]
        return found

    def _fits(self, cycle: Cycle) -> bool:
        """Whether crops and frames of a cycle's shapes are large and many enough."""
        arch, alpha = self.recipe.model.arch, self.recipe.slowfast.alpha
        base, factors = self.schedule.base, cycle.factors
        try:
            check_frames(arch, base.frames, alpha, [1.0, *(time for time, _ in factors)])
        except ValueError:
            return False
        return all(round(base.crop * space) >= _SMALLEST_CROP for _, space in factors)

    def try_baseline(self) -> tuple[Stage, float]:
        """Some steps of it, and the seconds of starting a stage."""
        stepper, data = self._stepper(self.recipe), self._videos(self.recipe)[0]
        began = time.monotonic()
        stage = self._train(stepper, data, self.schedule.base, _TRIED, 0, lambda _: 0.0)
        return stage, time.monotonic() - began - stage.seconds

    def run(self, cycle: Cycle, seconds: float) -> Arm:
        """Train a cycle from its start for some seconds, and score it twice."""
        recipe, base = self.recipe.replaced(cycle.overrides), self.schedule.base
        stepper, data = self._stepper(recipe), self._videos(recipe)[0]
        how = recipe.multigrid.size_divisor, recipe.multigrid.batch_exponent
        shapes = [scale_shape(base, pair, *how) for pair in cycle.factors]
        coarse = shapes or [base]
        part = _COARSE * seconds / len(coarse)
        stages, done, clips, scores = list[Stage](), 0.0, 0, list[float]()
        for shape in (*coarse, base):
            left = seconds - done if len(stages) == len(coarse) else part
            rate = partial(_rate, done=done, whole=seconds)
            stages.append(self._train(stepper, data, shape, left, clips, rate))
            done, clips = done + left, clips + stages[-1].clips
            if len(stages) >= len(coarse):
                scores.append(self._score(stepper, shape))
        return Arm(cycle, tuple(stages), *scores)

    def _stepper(self, recipe: Recipe) -> Stepper:
        torch.manual_seed(recipe.rng_seed)
        device, start = self._world.device, recipe.train
        model = build_model(recipe, grouped_bn=True).to(device)
        if path := start.checkpoint_file_path:
            load_weights(model, path, kind=start.checkpoint_type, inflate=start.checkpoint_inflate)
        return Stepper(recipe, model, device)

    def _train(
        self,
        stepper: Stepper,
        data: Any,
        shape: Shape,
        seconds: float,
        first_clip: int,
        rate: Callable[[float], float],
    ) -> Stage:
        """Train at a shape for some seconds after the first iteration, which is not counted: at a
        new shape a GPU's takes seconds; `rate` is the part of the full learning rate after so many
        of them."""
        schedule = self._endless(stepper.recipe, shape, first_clip)
        batches = iter(training_loader(stepper.recipe, data, schedule, 0, 0, 1))
        losses, began, spent = list[float](), math.nan, 0.0
        for step, batch in zip(schedule.steps(), batches, strict=True):
            now = step._replace(lr=step.lr * rate(spent))
            losses.append(float(stepper(now, batch).loss))
            if not math.isfinite(losses[-1]):
                raise FloatingPointError(
                    f"the loss is {losses[-1]} after {len(losses)} iterations (shape {shape}, LR "
                    f"{now.lr:.4g}); lower SOLVER.BASE_LR"
                )
            if len(losses) == 1:
                began = time.monotonic()
            elif (spent := time.monotonic() - began) >= seconds:
                break
        counted = len(losses) - 1
        return Stage(shape, spent, counted, fmean(losses[-max(1, counted // 10) :]))

    def _endless(self, recipe: Recipe, shape: Shape, first_clip: int) -> Schedule:
        """One shape for longer than anybody waits, at the rate of its clips, with a recipe's BN."""
        base, size, rule = self.schedule.base, recipe.bn_size, recipe.solver.batch_rate_rule
        phase = Phase(
            start=0,
            stop=10**9,
            baseline_epochs=(0.0, 1.0),
            stage=0,
            lr_scale=batch_rate_factor(shape.batch / base.batch, rule),
            shapes=(shape,),
            bn_sizes=(min(size, shape.batch) or None,),
            first_clip=first_clip,
        )
        rate = SteppedRate((1.0,), (self.recipe.solver.base_lr,))
        return Schedule(base, len(self._split.trained), 1.0, rate, (phase,))

    def _score(self, stepper: Stepper, shape: Shape) -> float:
        """Per cent of the sample, at the grid of a shape with precise BN there; the weights and
        statistics that are trained on stay."""
        recipe, world = self._on(shape), self._world
        model = build_model(recipe, grouped_bn=True).to(world.device)
        model.load_state_dict(stepper.model.state_dict())
        data, scored = self._videos(recipe)
        schedule = replace(self._endless(recipe, recipe.base_shape, 0), base=recipe.base_shape)
        step, batch = schedule.at(0), schedule.base.batch
        loader = precise_bn_loader(recipe, data, schedule, step, world.rank, world.size)
        transform = InputTransform.of_recipe(recipe, world.device)
        autocast = Precision(recipe, world.device).autocast
        update_precise_bn(model, loader, transform, world, autocast, batch)
        metric, total = metric_names(recipe)[0], sum(map(len, scored))
        found = [evaluate(model, recipe, some, batch, world).metrics[metric] for some in scored]
        return sum(score * len(some) for score, some in zip(found, scored, strict=True)) / total

    def _on(self, shape: Shape) -> Recipe:
        """The baseline's recipe with a shape's grid for its own, and its field of view."""
        base, jitter = self.schedule.base, self.recipe.data.train_jitter_scales
        if (shape.frames, shape.crop) == (base.frames, base.crop):
            return self.recipe
        sides = [max(shape.crop, round(side * shape.crop / base.crop)) for side in jitter]
        return self.recipe.replaced(
            {
                "DATA.NUM_FRAMES": shape.frames,
                "DATA.SAMPLING_RATE": self.recipe.data.sampling_rate * base.frames // shape.frames,
                "DATA.TRAIN_CROP_SIZE": shape.crop,
                "DATA.CROP_SIZE": shape.crop,
                "DATA.TEST_CROP_SIZE": shape.crop,
                "DATA.TRAIN_JITTER_SCALES": sides,
            }
        )


def _rate(seconds: float, *, done: float, whole: float) -> float:
    """The part of the full learning rate, `seconds` into a stage before which `done` of the arm's
    `whole` seconds were spent."""
    part = (done + seconds) / whole
    return max(0.01, min(1.0, part / _WARMUP, (1 - part) / _FALL))
