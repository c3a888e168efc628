"""Pilot: short runs of a baseline and of several cycles for equal times, before a long training.

The arms are ordinary runs of the recipe with a smaller SOLVER.LENGTH. The lengths follow from step
times that are measured first. `pilot_verdict` judges their results.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from multigrid import GENTLE, PAPER
from multigrid.cost import MIN_FINAL_ITERATIONS, final_iterations
from slowfast_patches.config.scale import as_overrides
from slowfast_patches.config.schedule import check_world_size, cycle_keys
from slowfast_patches.datasets.lists.dataset_lists import load_with_classes, read_list
from slowfast_patches.launch.device import process_device, set_up_device
from slowfast_patches.launch.placement import find_placement
from slowfast_patches.models.build import build_model
from slowfast_patches.plan.flops import check_shapes
from slowfast_patches.plan.step_times import shapes_to_measure, write_step_times
from slowfast_patches.study.arms import Arm, check_study, cost_of, make_arm, measured_times, scaled
from slowfast_patches.study.runs import RunFailedError, Study, evaluation_share, train
from slowfast_patches.train.step import Stepper
from slowfast_patches.train.warm_up import time_steps
from slowfast_patches.utils.tables import format_duration

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


class ShortBaselineError(ValueError):
    """Error raised when a whole baseline takes no longer than its pilot."""


def pilot_arms(cfg_file: Path, overrides: Sequence[str]) -> list[Arm]:
    """Return the whole baseline of a recipe, and a whole training with each cycle that fits it.

    They are scored once, on the validation set.

    Raises:
        ValueError: The recipe cannot be trained on this machine or detects boxes, or no cycle fits.
    """
    check_study([cfg_file], overrides)
    recipe = load_with_classes(cfg_file, overrides)
    placement = find_placement(recipe, os.environ)
    if placement.machines > 1 or (placement.local_rank is not None and placement.size > 1):
        raise ValueError(
            "The pilot trains on this machine. Start it without a launcher, with NUM_SHARDS 1 and "
            f"SOLVER.REFERENCE_BATCH_SIZE {recipe.base_shape.batch}, which scales the rates."
        )
    if recipe.task == "detection":
        raise ValueError(
            "The pilot scores videos, but the recipe detects boxes (DETECTION.ENABLE True). Train "
            "both to the end with multigrid-compare."
        )
    for split in ("train", "val"):
        read_list(recipe, split)
    keys: dict[str, object] = {
        "TEST.ENABLE": False,
        "TRAIN.EVAL_MAX_SHARE": 1e-6,  # only the last evaluation
        "MODEL.EMA_DECAY": 0.0,
        "BN.NUM_BATCHES_PRECISE": min(_PRECISE, recipe.bn.num_batches_precise),
    }

    def make(name: str, cycles: dict[str, object]) -> Arm:
        folder = name.replace(", ", "_").replace(" ", "_")
        arm = make_arm(name, folder, cfg_file, (*overrides, *as_overrides(keys | cycles)))
        _check(arm)
        return replace(arm, baseline="baseline")

    arms = [make("baseline", {"MULTIGRID.LONG_CYCLE": False, "MULTIGRID.SHORT_CYCLE": False})]
    for cycles in CYCLES:
        try:
            arms.append(make(cycles.name, cycle_keys(cycles)))
        except ValueError as error:
            logger.info("%s is not tried: %s", cycles.name, error)
            why = error
    if len(arms) == 1:
        raise ValueError(f"No cycle fits the shape {arms[0].schedule.base}: {why}")
    return arms


def _check(arm: Arm) -> None:
    """Check that an arm can be trained.

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
    measured = output / "step_times.json"

    def read() -> list[float]:
        timings = measured_times(files or [measured])
        return [cost_of(arm, timings).seconds or 0.0 for arm in arms]

    try:
        return read()
    except ValueError:
        if files:
            raise
    recipe = arms[0].recipe
    set_up_device(recipe)
    device = process_device(recipe, 0)
    torch.manual_seed(recipe.rng_seed)
    stepper = Stepper(recipe, build_model(recipe, grouped_bn=True).to(device), device)
    kinds = dict.fromkeys(kind for arm in arms for kind in shapes_to_measure(arm.recipe))
    write_step_times(measured, recipe, device, time_steps(stepper, list(kinds)))
    del stepper
    torch.cuda.empty_cache()  # for the runs, which are other processes
    return read()


def pilot_study(
    arms: Sequence[Arm],
    seconds_of_steps: Sequence[float],
    minutes: float | None,
    seeds: Sequence[int],
    output: Path,
) -> Study:
    """Return the runs of a pilot: as many arms as the time allows, shortened to equal times.

    Args:
        arms: whole trainings, the baseline first, as `pilot_arms` returns them.
        seconds_of_steps: seconds of the steps of each.
        minutes: time of the pilot for each seed. None means a tenth of the baseline, or what it
            takes for a result if that is longer.
        seeds: the seeds.
        output: folder of the runs.

    Raises:
        ShortBaselineError: The whole baseline takes no longer than the pilot.
        ValueError: `minutes` are too few for a result.
    """
    whole = seconds_of_steps[0]
    besides = _START + evaluation_share(arms[0]) * whole
    needs = [besides + _least(arm) * s for arm, s in zip(arms, seconds_of_steps, strict=True)]
    least = 2 * max(needs[:2])
    seconds = max(least, whole / 10) if minutes is None else 60 * minutes
    if whole <= (longest := max(seconds, least)):
        raise ShortBaselineError(
            f"No pilot is needed: the whole baseline takes about {format_duration(whole)}, and "
            f"a pilot {format_duration(longest)}. Train both instead. That is more conclusive."
        )
    if seconds < least:
        # Add a margin, because the next measurement of the step time may be longer.
        raise ValueError(
            f"--minutes {seconds / 60:.3g} is too short for a result. Give --minutes "
            f"{math.ceil(1.2 * least / 6) / 10:g} or more (the whole baseline takes about "
            f"{format_duration(whole)})."
        )
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
    return scaled(arm, length, arm.name, f"{arm.folder}_x{length:g}")


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
