"""Step times of a recipe: measured at every shape, or estimated from the time at one shape.

benchmarks/step_time.py measures how long one process takes for a number of clips, frames and
pixels. The file with these times applies to all recipes with the same model, precision and device
type. The number of processes may differ if each process has the same shapes. The times do not
include communication between processes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from multigrid import Shape
from multigrid.cost import FlopsPerClip, SecondsPerIteration
from slowfast_patches.config.keys import speed_keys
from slowfast_patches.config.recipe import KEYS, Recipe, default_recipe, differences, values_by_key
from slowfast_patches.config.schedule import schedule_of, without_multigrid
from slowfast_patches.plan.flops import flops_per_clip as count_flops
from slowfast_patches.utils.errors import mistake_in
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.machine import machine

FORMAT = 1
"""Version of the file format."""

MANY_VIDEOS = 10**7
"""Number of videos that is large enough for every phase to use each of its shapes."""


class MisfitError(ValueError):
    """Error raised when a file of step times does not apply to a recipe."""


@dataclass(frozen=True)
class Timing:
    """Seconds per iteration of a recipe and of its baseline.

    At the same shape, the two times differ, because multigrid computes BN over groups of clips. All
    attributes are None if the times are unknown.

    Attributes:
        ours: Function from a shape to the seconds per iteration of the recipe.
        baseline: Function from a shape to the seconds per iteration of the baseline.
        source: Description of where the times come from.
    """

    ours: SecondsPerIteration | None
    baseline: SecondsPerIteration | None
    source: str | None


UNTIMED = Timing(None, None, None)
"""Timing of a recipe whose step times are unknown."""


@dataclass(frozen=True)
class StepTimes:
    """Content of a file of measured step times.

    Attributes:
        path: The file.
        device: Device type: "cpu" or "cuda".
        where: Name of the device.
        date: Date of the measurement.
        model: Values of the keys that affect the times, by full key.
        seconds: Maps (clips per process, frames, crop, whether BN is grouped) to the seconds per
            iteration, or to None if the process ran out of memory.
    """

    path: Path
    device: str
    where: str
    date: str
    model: Mapping[str, object]
    seconds: Mapping[tuple[int, int, int, bool], float | None]

    @property
    def source(self) -> str:
        """Text that names the file, the device and the date of the measurement."""
        return f"{self.path}, measured on {self.where} ({self.device}), {self.date}"

    def of_recipe(self, recipe: Recipe) -> SecondsPerIteration:
        """Return a function from a shape to the seconds per iteration of a recipe.

        The returned function raises MisfitError for a shape that was not measured.

        Raises:
            MisfitError: The file is for another model, precision or device type, or lacks a shape
                of the recipe's schedule.
        """
        # A key that is missing in the file is newer than the file and had its default value.
        measured = {"device": self.device, **model_of(default_recipe()), **self.model}
        wanted = {"device": device_of(recipe), **model_of(recipe)}
        if differing := differences(measured, wanted, "here"):
            raise MisfitError(f"{self.path} is for another model: {'; '.join(differing)}")
        grouped = recipe.groups_batchnorm
        processes = recipe.world_size

        def look_up(shape: Shape) -> float:
            clips = shape.batch // processes
            key = (clips, shape.frames, shape.crop, grouped)
            if key not in self.seconds:
                raise MisfitError(
                    f"{self.path} has no time for {shape} on {processes} process(es) with {clips} "
                    f"clips each, {'with' if grouped else 'without'} grouped BN"
                )
            if (seconds := self.seconds[key]) is None:
                raise MisfitError(f"{self.path}: {shape} ran out of memory on {self.where}")
            return seconds

        for shape, bn_size in shapes_to_measure(recipe):
            if (bn_size is not None) == grouped:
                look_up(shape)
        return look_up


def measured_timing(files: Sequence[Path], recipe: Recipe) -> Timing:
    """Return the times of a recipe and of its baseline, each from the first file that applies.

    Raises:
        MisfitError: No file applies. The message gives the reason for each file.
        ValueError: A file is not a file of step times.
    """
    contents = list(map(read_step_times, files))
    own, ours = _first_fit(contents, recipe)
    other, baseline = _first_fit(contents, without_multigrid(recipe))
    sources = list(dict.fromkeys([own.source, other.source]))
    if (processes := recipe.world_size) > 1:
        sources.append(f"without communication between the {processes} processes")
    return Timing(ours, baseline, "; ".join(sources))


def _first_fit(files: Sequence[StepTimes], recipe: Recipe) -> tuple[StepTimes, SecondsPerIteration]:
    reasons = list[str]()
    for times in files:
        try:
            return times, times.of_recipe(recipe)
        except MisfitError as error:
            reasons.append(str(error))
    raise MisfitError("; ".join(reasons))


def find_timing(recipe: Recipe, seconds: float | None, files: Sequence[Path]) -> Timing:
    """Return the times of a recipe and of its baseline, or `UNTIMED` without `seconds` and `files`.

    Args:
        recipe: The recipe.
        seconds: Seconds per iteration at the baseline's shape, from which the times at the other
            shapes are estimated. None reads the files instead.
        files: Files of step times.

    Raises:
        ValueError: No file applies to the recipe.
    """
    if seconds is not None:
        return estimated_timing(recipe, seconds, count_flops(recipe))
    try:
        return measured_timing(files, recipe) if files else UNTIMED
    except MisfitError as error:
        raise ValueError(
            f"{error}. Measure the step times of this recipe (docs/performance.md), or estimate "
            "them with --step-seconds S."
        ) from error


def estimated_timing(recipe: Recipe, seconds: float, flops_per_clip: FlopsPerClip) -> Timing:
    """Return times that are proportional to training FLOPs.

    Args:
        recipe: The recipe.
        seconds: Seconds per iteration at the baseline's shape.
        flops_per_clip: Function from (frames, crop) to the training FLOPs of one clip.

    Raises:
        ValueError: `seconds` is not a finite number above 0.
    """
    if not 0 < seconds < math.inf:
        raise ValueError(
            f"The time of an iteration must be a finite number of seconds above 0, not {seconds:g}."
        )
    base = recipe.base_shape

    def work(shape: Shape) -> float:
        return shape.batch * flops_per_clip(shape.frames, shape.crop)

    def estimate(shape: Shape) -> float:
        return seconds * work(shape) / work(base)

    source = f"an estimate, from {seconds:g} s at the baseline's shape and the training FLOPs of"
    return Timing(estimate, estimate, f"{source} the other shapes")


def shapes_to_measure(recipe: Recipe) -> list[tuple[Shape, int | None]]:
    """Return (shape, BN size) for the baseline and each shape of a recipe's schedule.

    The BN size is the number of clips that share BN statistics. None stands for the clips of a
    process. The first entry is the baseline's shape with None. If the schedule has several BN sizes
    for a shape, only the smallest BN size is returned, which has the most groups.
    """
    schedule = schedule_of(recipe, MANY_VIDEOS)
    sizes: dict[Shape, int | None] = {}
    for phase in schedule.phases:
        for shape, size in zip(phase.shapes, phase.bn_sizes, strict=True):
            known = sizes.setdefault(shape, size)
            if size is not None and known is not None:
                sizes[shape] = min(size, known)
    return list(dict.fromkeys([(schedule.base, None), *sizes.items()]))


def model_of(recipe: Recipe) -> dict[str, object]:
    """Return the values of the keys that affect the step times of a recipe, by full key."""
    values = values_by_key(recipe)
    without_effect = {name for name, key in KEYS.items() if key.needs and key.needs(recipe)}
    return {name: values[name] for name in sorted({*speed_keys()} - without_effect)}


def device_of(recipe: Recipe) -> str:
    """Return the type of the device that a recipe trains on: "cuda" or "cpu"."""
    return "cuda" if recipe.num_gpus > 0 else "cpu"


def write_step_times(
    path: Path,
    recipe: Recipe,
    device: torch.device,
    seconds: Mapping[tuple[Shape, int | None], float],
) -> None:
    """Write the step times of a recipe to a file for `read_step_times`.

    Args:
        path: The file to write. The folder is created if necessary.
        recipe: The recipe.
        device: Device on which the steps were timed.
        seconds: Maps (shape, BN size) to the seconds per step.
    """
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else machine()["processor"]
    rows = [
        {
            "shape": [shape.batch, shape.frames, shape.crop],
            "local_clips": shape.batch // recipe.world_size,
            "bn_size": bn_size,
            "seconds": {"median": median},
        }
        for (shape, bn_size), median in seconds.items()
    ]
    content = {
        "format": FORMAT,
        "device": {"type": device.type, "name": name},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": model_of(recipe),
        "shapes": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(content, indent=2) + "\n")


def read_step_times(path: str | Path) -> StepTimes:
    """Read a file of step times, as written by `write_step_times`.

    Raises:
        ValueError: The file cannot be read, or has another format.
    """
    path = Path(path)
    with mistake_in(f"{path} is not a file of step times"):
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT or not content["shapes"]:
            raise ValueError("it has no shapes. Measure them with --variants recipe")
        device = content["device"]
        seconds = dict(map(_time, content["shapes"]))
        model = dict(content["model"])
        return StepTimes(path, device["type"], device["name"], content["date"], model, seconds)


def _time(row: Any) -> tuple[tuple[int, int, int, bool], float | None]:
    _, frames, crop = row["shape"]
    seconds = row["seconds"] and row["seconds"]["median"]
    return (row["local_clips"], frames, crop, row["bn_size"] is not None), seconds
