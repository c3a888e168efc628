"""Pilot: short runs of a baseline and of several cycles for equal times, and what they advise.

The arms are ordinary runs of the recipe with a smaller SOLVER.LENGTH. The lengths follow from step
times that are measured first. The verdict is about one claim: after equal time, the best cycle is
ahead of the baseline. Its probability follows from two errors of each score: the number of videos
is finite, and there are few seeds. The second error is large where a curve is steep, as in the
minutes of a pilot (projects/real_video/README.md).
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from multigrid import GENTLE, PAPER, Cycles
from multigrid.cost import MIN_FINAL_ITERATIONS, final_iterations
from slowfast_patches.config.metrics import metric_title
from slowfast_patches.config.scale import as_overrides
from slowfast_patches.config.schedule import check_world_size, cycle_keys
from slowfast_patches.datasets.lists.dataset_lists import load_with_classes, read_list
from slowfast_patches.launch.device import process_device, set_up_device
from slowfast_patches.launch.placement import find_placement
from slowfast_patches.models.build import build_model
from slowfast_patches.plan.flops import check_shapes
from slowfast_patches.plan.step_times import shapes_to_measure, write_step_times
from slowfast_patches.study.arms import Arm, check_study, cost_of, make_arm, measured_times, scaled
from slowfast_patches.study.report import Report, Results, machine_warnings
from slowfast_patches.study.runs import RunFailedError, Study, evaluation_share, mean, train
from slowfast_patches.study.verdict import scored_videos, videos_error
from slowfast_patches.train.step import Stepper
from slowfast_patches.train.warm_up import time_steps
from slowfast_patches.utils.tables import Mean, format_duration

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

_SEEDS = 40.0
"""Standard deviation over seeds of a score p, in points, divided by p (1 − p).

This is the root mean square over the twenty trainings of the words and the digits
(projects/real_video/README.md).
"""

_PROBABLE = 0.75
"""Smallest probability for an advice."""

_SUREST = 0.95
"""Largest probability that is reported. Few seeds on one data set cannot prove more."""

_WAITING = 0.15
"""Share of a training spent waiting for data from which on the arms' times are not equal."""

_COLUMNS = ("length", "iterations", "clips", "clock", "seconds", "total", "loading")


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


@dataclass(frozen=True)
class Pilot(Results):
    """Result of a pilot, whose arms were trained for equal times.

    Attributes:
        baseline_seconds: seconds of the steps of the whole baseline.
    """

    baseline_seconds: float

    @property
    def videos(self) -> int:
        """Number of videos that were scored."""
        return scored_videos(self.runs["result"])

    @property
    def scores(self) -> dict[str, Mean]:
        """Means over seeds of the metric by arm, with their standard errors as `std`."""
        means = self.runs.groupby("arm")[self.metrics[0]].mean()
        return {
            str(arm): Mean(score, math.hypot(*self.errors(score))) for arm, score in means.items()
        }

    def errors(self, score: float) -> tuple[float, float]:
        """Return the parts of a score's standard error: of the videos, and of the seeds."""
        of_videos = videos_error(score, self.videos)
        variance = (of_videos / 100) ** 2 * self.videos
        return of_videos, _SEEDS * variance / math.sqrt(len(self.study.seeds))

    @property
    def best(self) -> Arm:
        """The arm with the highest score, apart from the baseline."""
        return max(self.study.arms[1:], key=lambda arm: self.scores[arm.name].mean)

    @property
    def ahead(self) -> float:
        """Probability that the best cycle is ahead of the baseline after equal time.

        It is corrected for the number of cycles, because each one may be the best by luck.
        """
        before, after = (self.scores[name] for name in ("baseline", self.best.name))
        spread = math.hypot(before.std or 0.0, after.std or 0.0)
        ahead = 0.5 * (1 + math.erf((after.mean - before.mean) / spread / math.sqrt(2)))
        if ahead > 0.5:
            ahead = max(0.5, 1 - (len(self.study.arms) - 1) * (1 - ahead))
        return min(max(ahead, 1 - _SUREST), _SUREST)

    @property
    def verdict(self) -> str:
        """One of "use multigrid", "do not use multigrid" and "undecided".

        A cycle is used only if it did not wait for data, because then its time was not equal. It is
        rejected only if it had `MIN_FINAL_ITERATIONS` at the baseline's shape.
        """
        if self.ahead >= _PROBABLE and self.waiting < _WAITING:
            return "use multigrid"
        if self.ahead <= 1 - _PROBABLE and self.final_iterations >= MIN_FINAL_ITERATIONS:
            return "do not use multigrid"
        return "undecided"

    @property
    def final_iterations(self) -> int:
        """Iterations of the best cycle at the baseline's shape, at its end."""
        return final_iterations(self.best.schedule)

    @property
    def waiting(self) -> float:
        """Share of the best cycle's training that was spent waiting for data."""
        found = mean(self.runs, self.best.name, "loading")
        return found.mean if found else 0.0

    @property
    def speed_up(self) -> float:
        """Time of the whole baseline divided by that of the whole training with the best cycle.

        Arms take equal times, so it is the ratio of their lengths.
        """
        return self.best.length / self.study.arms[0].length

    @property
    def seconds(self) -> float:
        """Wall-clock time of the runs of a seed."""
        return float(self.runs["total"].sum()) / len(self.study.seeds)

    def to_json(self) -> dict[str, Any]:
        """Return the pilot as plain data."""
        errors = {name: score.std for name, score in self.scores.items()}
        names = ("videos", "speed_up", "baseline_seconds", "seconds", "ahead")
        return {
            **super().to_json(),
            **{name: getattr(self, name) for name in names},
            "advice": self.verdict,
            "best": self.best.name,
            "standard_errors": errors,
        }


def pilot_report(pilot: Pilot) -> Report:
    """Return the report of a pilot."""
    name = pilot.best.name
    result = machine_warnings(pilot.runs)
    if pilot.waiting >= _WAITING:
        result.append(
            f'Warning: "{name}" waited for data in {100 * pilot.waiting:.0f} % of its training, so '
            "that it took longer than its steps. Prepare the videos with multigrid-prepare, and "
            "repeat the pilot."
        )
    explained = (
        f"{metric_title(pilot.metrics[0])} was measured on {pilot.videos} validation videos at the "
        "baseline's shape. ± is the standard error that follows from the numbers of videos and of "
        f"seeds. The pilot took {format_duration(pilot.seconds)} for each seed. The steps of the "
        f"whole baseline would take {format_duration(pilot.baseline_seconds)}."
    )
    return Report(
        name="pilot",
        title="Pilot",
        results=pilot,
        tables=[pilot.table(_COLUMNS, pilot.scores), explained],
        result=[*result, _advice(pilot)],
    )


def _advice(pilot: Pilot) -> str:
    """Return the verdict, its probability, and what to do next."""
    ahead = (
        f'After equal time the best cycle ("{pilot.best.name}") is ahead of the baseline with a '
        f"probability of {100 * pilot.ahead:.0f} %, according to these {pilot.videos} videos and "
        f"{_count(len(pilot.study.seeds))}."
    )
    if pilot.verdict == "use multigrid":
        factor = pilot.best.recipe.multigrid.epoch_factor
        return (
            f"Advice: use multigrid. {ahead} Its whole training takes 1/{pilot.speed_up:.2f} of "
            f"the baseline's time, for {factor:g} × the clips. multigrid-compare shows the "
            "accuracy that both reach."
        )
    if pilot.verdict == "do not use multigrid":
        return f"Advice: do not use multigrid here. {ahead}"
    if pilot.final_iterations < MIN_FINAL_ITERATIONS:
        ahead += (
            f" Only {pilot.final_iterations} iterations followed its last coarse shape. It takes "
            f"about {MIN_FINAL_ITERATIONS} to see what the coarse shapes taught."
        )
    return f"Undecided. {ahead} {_more_evidence(pilot)}"


def _more_evidence(pilot: Pilot) -> str:
    """Return what would make an undecided pilot clearer."""
    if 2 * pilot.seconds >= pilot.baseline_seconds:
        return "To know, train both with multigrid-compare."
    score = pilot.scores[pilot.best.name]
    of_videos, of_seeds = pilot.errors(score.mean)
    seeds = " ".join(map(str, range(max(pilot.study.seeds) + 2)))
    return (
        f"For a clearer result, give it twice the time (--minutes {math.ceil(pilot.seconds / 30)})"
        f", another seed (--seeds {seeds}; {_count(len(pilot.study.seeds))} cause ±{of_seeds:.1f} "
        f"of the best score's ±{score.std:.1f}), or more validation videos (these {pilot.videos} "
        f"cause ±{of_videos:.1f}). Or train both with multigrid-compare."
    )


def _count(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"{seeds} seeds"


def recipe_text(cycles: Cycles, base: str) -> str:
    """Return the YAML text of a recipe that inherits from another one and sets its cycles.

    Args:
        cycles: named cycles, or a variation of them.
        base: path of the other recipe.
    """
    named = PAPER if cycles.batch_exponent == PAPER.batch_exponent else GENTLE
    usual = cycle_keys(named)
    changed = {
        key.removeprefix("MULTIGRID."): value
        for key, value in cycle_keys(cycles).items()
        if value != usual.get(key)
    }
    content: dict[str, object] = {"_BASE_": [base, f"configs/Cycles/{named.name}.yaml"]}
    if changed:
        content["MULTIGRID"] = changed
    return str(yaml.safe_dump(content, default_flow_style=None, sort_keys=False, width=1000))
