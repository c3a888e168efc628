"""Arms of a pilot: short runs of the baseline and of several cycles that take equal times.

They are ordinary runs of the recipe with a smaller SOLVER.LENGTH. The lengths follow from step
times that are measured first.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch

from multigrid import GENTLE, PAPER, Cycles, Shape, Step
from multigrid.cost import MIN_FINAL_ITERATIONS, final_iterations
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import as_overrides, scale_to_world_size
from slowfast_patches.config.schedule import (
    check_world_size,
    cycle_keys,
    cycles_of,
    without_multigrid,
)
from slowfast_patches.datasets.lists.dataset_lists import load_with_classes, read_list
from slowfast_patches.launch.device import process_device, set_up_device
from slowfast_patches.launch.launch import resolve
from slowfast_patches.launch.placement import find_placement
from slowfast_patches.models.build import build_model
from slowfast_patches.models.flops import check_shapes
from slowfast_patches.plan.step_times import shapes_to_measure, write_step_times
from slowfast_patches.study.arms import Arm, check_study, cost_of, make_arm, measured_times, scaled
from slowfast_patches.study.runs import RunFailedError, Study, evaluation_share, train
from slowfast_patches.train.step import Stepper
from slowfast_patches.train.warm_up import dry_run, made_up_batch
from slowfast_patches.utils.tables import format_duration

__all__ = [
    "CYCLES",
    "ShortBaselineError",
    "one_process",
    "pilot_arms",
    "pilot_study",
    "step_seconds",
    "train_pilot",
]

logger = logging.getLogger(__name__)

CYCLES = (
    GENTLE,
    replace(GENTLE, long_cycle=((1.0, 0.5), (1.0, 1.0)), name="GENTLE, all frames"),
    replace(GENTLE, long_cycle=((0.5, 1.0), (1.0, 1.0)), name="GENTLE, all pixels"),
    replace(PAPER, short_cycle=(), epoch_factor=1.0, name="PAPER, long cycle alone"),
)
"""Cycles to try, in this order, as far as the time allows."""

_ITERATIONS = 300
"""Least length of an arm, in iterations of the baseline."""

_FINAL = 1.2 * MIN_FINAL_ITERATIONS
"""Least number of iterations of a cycle after its last coarse shape, with a margin."""

_SMALLEST_CROP = 32
"""Smallest crop that is tried, the stride of the last feature map."""

_PRECISE = 6
"""Largest number of mini-batches for precise BN. These are enough to compare arms."""

_START = 10.0
"""Seconds that a run takes to start."""

_ROUNDS, _STEPS = 2, 3
"""Rounds in which shapes are timed, and the steps of each. Another one before them is not timed."""

_RATE = 1e-4
"""Learning rate of the timed steps, so low that activations keep their usual range."""

_ARM_KEYS: dict[str, object] = {
    "TEST.ENABLE": False,
    "TRAIN.EVAL_MAX_SHARE": 1e-6,  # only the last evaluation
    "MODEL.EMA_DECAY": 0.0,
}
"""Keys of all arms: they are scored once, on the validation set."""


class ShortBaselineError(ValueError):
    """Error raised when a whole baseline takes no longer than its pilot.

    Args:
        message: text of the error.
        cycles: cycles to train beside the baseline instead of a pilot.
    """

    def __init__(self, message: str, cycles: Cycles | None) -> None:
        super().__init__(message)
        self.cycles = cycles


def one_process(recipe: Recipe) -> Recipe:
    """Return the baseline of a recipe for one process.

    It has the share of the mini-batch that each process of the recipe has, and the learning rate is
    scaled to that many clips.

    Raises:
        ValueError: The recipe detects boxes, or a launcher has started several processes.
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
    recipe = resolve(without_multigrid(recipe), placement)
    batch = recipe.base_shape.batch
    share = recipe.replaced(
        {
            "NUM_SHARDS": 1,
            "PROCESSES_PER_MACHINE": 1,
            "NUM_GPUS": min(1, recipe.num_gpus),
            "TRAIN.BATCH_SIZE": batch // recipe.world_size,
            "SOLVER.REFERENCE_WORLD_SIZE": 0,
            "SOLVER.REFERENCE_BATCH_SIZE": batch,
            "BN.NUM_BATCHES_PRECISE": min(_PRECISE, recipe.bn.num_batches_precise),
        }
    )
    return scale_to_world_size(share)


_PROCESS_KEYS = (
    *("NUM_SHARDS", "NUM_GPUS", "TRAIN.BATCH_SIZE", "BN.NUM_BATCHES_PRECISE"),
    *("SOLVER.BASE_LR", "SOLVER.WARMUP_START_LR", "SOLVER.COSINE_END_LR"),
    *("SOLVER.REFERENCE_WORLD_SIZE", "SOLVER.REFERENCE_BATCH_SIZE"),
    "SOLVER.BASE_LR_SCALE_NUM_SHARDS",
)
"""Keys that `one_process` changes, directly or by scaling."""


def pilot_arms(cfg_file: Path, overrides: Sequence[str]) -> list[Arm]:
    """Return the whole baseline of a recipe, and a whole training with each cycle that fits it.

    Raises:
        ValueError: The recipe cannot be trained, or no cycle fits it.
    """
    check_study([cfg_file], overrides)
    alone = one_process(load_with_classes(cfg_file, overrides))
    keys = {key: alone[key] for key in _PROCESS_KEYS} | _ARM_KEYS
    pairs = (*overrides, *as_overrides(keys))
    off = {"MULTIGRID.LONG_CYCLE": False, "MULTIGRID.SHORT_CYCLE": False}
    arms = [_check(make_arm("baseline", "baseline", cfg_file, (*pairs, *as_overrides(off))))]
    for split in ("train", "val"):
        read_list(alone, split)
    for cycles in CYCLES:
        folder = cycles.name.replace(", ", "_").replace(" ", "_")
        try:
            every = (*pairs, *as_overrides(cycle_keys(cycles)))
            arms.append(_check(make_arm(cycles.name, folder, cfg_file, every)))
        except ValueError as error:
            logger.info("%s is not tried: %s", cycles.name, error)
            why = error
    if len(arms) == 1:
        raise ValueError(f"No cycle fits the shape {arms[0].schedule.base}: {why}")
    return [replace(arm, baseline=arms[0].name) for arm in arms]


def _check(arm: Arm) -> Arm:
    """Return an arm that can be trained.

    Raises:
        ValueError: The model or its BN groups do not take a shape, or a crop is too small.
    """
    check_world_size(arm.recipe, arm.schedule)
    smallest = min(arm.schedule.shapes, key=lambda shape: shape.crop)
    if arm.recipe.uses_multigrid and smallest.crop < _SMALLEST_CROP:
        raise ValueError(
            f"its crops of {smallest.crop} pixels ({smallest}) are below {_SMALLEST_CROP}. Give a "
            "larger DATA.TRAIN_CROP_SIZE."
        )
    check_shapes(arm.recipe, arm.schedule.shapes)
    return arm


def step_seconds(arms: Sequence[Arm], files: Sequence[Path], output: Path) -> list[float]:
    """Return the seconds of the steps of each arm.

    Args:
        arms: the arms.
        files: files of benchmarks/step_time.py. Without them, steps are timed and the times are
            written to step_times.json, from where a repeated pilot reads them.
        output: folder for that file.

    Raises:
        ValueError: The given files do not fit the arms, or a shape does not fit into memory.
    """
    path = output / "step_times.json"

    def read(files: Sequence[Path]) -> list[float]:
        timings = measured_times(files)
        return [cost_of(arm, timings).seconds or 0.0 for arm in arms]

    if files:
        return read(files)
    try:
        return read([path])
    except ValueError:
        _measure(arms, path)
    return read([path])


def _measure(arms: Sequence[Arm], path: Path) -> None:
    """Time the steps of all shapes of some arms in turns, and write the times to a file."""
    recipe = arms[0].recipe
    set_up_device(recipe)
    device = process_device(recipe, 0)
    torch.manual_seed(recipe.rng_seed)
    model = build_model(recipe, grouped_bn=True).to(device)
    stepper = Stepper(recipe, model, device)
    for arm in arms:
        dry_run(stepper, arm.schedule)
    kinds = dict.fromkeys(kind for arm in arms for kind in shapes_to_measure(arm.recipe))
    times: dict[tuple[Shape, int | None], list[float]] = defaultdict(list)
    for _ in range(_ROUNDS):
        for shape, size in kinds:
            times[shape, size] += _time(stepper, shape, size)
    seconds = {kind: median(values) for kind, values in times.items()}
    write_step_times(path, recipe, device, seconds)
    del model, stepper
    torch.cuda.empty_cache()  # for the runs, which are other processes


def _time(stepper: Stepper, shape: Shape, bn_size: int | None) -> list[float]:
    """Return the seconds of some steps at one shape."""
    on_gpu = stepper.device.type == "cuda"
    # CPU time of a single thread excludes the time it waits for a core on a busy machine.
    alone = not on_gpu and torch.get_num_threads() == 1
    clock: Callable[[], float] = time.process_time if alone else time.perf_counter
    batch = made_up_batch(stepper.recipe, shape.batch, shape)
    step = Step(0, 0, shape, _RATE, bn_size, 0, 0.0)
    marks = list[float]()
    for _ in range(2 + _STEPS):
        if on_gpu:
            torch.cuda.synchronize(stepper.device)
        marks.append(clock())
        stepper(step, batch)
    return [after - before for before, after in pairwise(marks[1:])]


def pilot_study(
    arms: Sequence[Arm],
    seconds_of_steps: Sequence[float],
    minutes: float | None,
    seeds: Sequence[int],
    output: Path,
    processes: int = 1,
) -> Study:
    """Return the runs of a pilot: as many arms as the time allows, shortened to equal times.

    Args:
        arms: whole trainings, the baseline first, as `pilot_arms` returns them.
        seconds_of_steps: seconds of the steps of each.
        minutes: time of the pilot for each seed. None means a tenth of the baseline, or what it
            takes for a result if that is longer.
        seeds: the seeds.
        output: folder of the runs.
        processes: number of processes on which the whole baseline would be trained.

    Raises:
        ShortBaselineError: The whole baseline takes no longer than the pilot.
        ValueError: `minutes` are too few for a result.
    """
    baseline = arms[0]
    scoring = evaluation_share(baseline) * seconds_of_steps[0]
    besides = _START + scoring
    needs = [besides + _least(arm) * s for arm, s in zip(arms, seconds_of_steps, strict=True)]
    whole = seconds_of_steps[0] / processes
    least = 2 * max(needs[:2])
    asked = None if minutes is None else 60 * minutes
    seconds = _checked_seconds(asked, least, whole, cycles_of(arms[1].recipe))
    number = max(n for n in range(2, len(arms) + 1) if n == 2 or n * max(needs[:n]) <= seconds)
    share = seconds / number - besides
    logger.info(
        "Training each of these for %s: %s. The pilot takes about %s for each seed, the whole "
        "baseline %s",
        *(format_duration(share), "; ".join(arm.name for arm in arms[:number])),
        *(format_duration(seconds), format_duration(whole)),
    )
    tried = [
        _shortened(arm, share / s) for arm, s in zip(arms, seconds_of_steps[:number], strict=False)
    ]
    return Study(tried, seeds, output, {arm.name: share for arm in tried})


def _least(arm: Arm) -> float:
    """Return the smallest length at which an arm tells something."""
    if not arm.recipe.uses_multigrid:
        return _ITERATIONS / arm.iterations
    return _FINAL / final_iterations(arm.schedule)


def _shortened(arm: Arm, length: float) -> Arm:
    length = float(f"{length:.4g}")
    shorter = scaled(arm, length, arm.name, f"{arm.folder}_x{length:g}")
    return replace(shorter, baseline=arm.baseline, length=length)


def _checked_seconds(
    asked: float | None, least: float, baseline: float, cycles: Cycles | None
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


def train_pilot(study: Study, run_net: Path) -> Study:
    """Train the runs of a pilot that are missing.

    Returns:
        The study without the cycles whose training failed.

    Raises:
        RunFailedError: The training of the baseline or of every cycle failed.
    """
    trained = list[Arm]()
    for arm in study.arms:
        try:
            with closing(train(replace(study, arms=[arm]), run_net)) as progress:
                for _ in progress:
                    pass
            trained.append(arm)
        except RunFailedError as error:
            if not trained:
                raise
            logger.warning("%s is left out: %s", arm.name, error)
            failure = error
    if len(trained) == 1:
        raise failure
    return replace(study, arms=trained)
