"""Step times of a recipe: measured at every shape, or estimated from one number.

benchmarks/step_time.py measures what one process computes for a number of clips, frames and pixels.
Its file applies to every recipe with the same model, precision and kind of device, on any number of
processes that have these shapes. Communication is not included.
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
from slowfast_patches.config.families import FAMILIES
from slowfast_patches.config.keys import speed_keys
from slowfast_patches.config.recipe import KEYS, Recipe, default_recipe, differences, values_by_key
from slowfast_patches.config.schedule import schedule_of, without_multigrid
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.machine import machine

FORMAT = 1
"""Version of the file format."""

MANY_VIDEOS = 10**7
"""Size of a data set for which every phase has an iteration of each of its shapes."""


class MisfitError(ValueError):
    """Error raised when step times do not fit a recipe."""


@dataclass(frozen=True)
class Timing:
    """Seconds per iteration of a recipe and of its baseline.

    They differ at equal shapes, because the baseline has other batch normalization. All attributes
    are None if nothing is known.

    Attributes:
        ours: function from a shape to the seconds of the recipe.
        baseline: function from a shape to the seconds of the baseline.
        source: text on where the times come from.
    """

    ours: SecondsPerIteration | None
    baseline: SecondsPerIteration | None
    source: str | None


UNTIMED = Timing(None, None, None)
"""Timing of a recipe whose step times are not known."""


@dataclass(frozen=True)
class StepTimes:
    """Content of a file of measured step times.

    Attributes:
        path: the file.
        device: "cpu" or "cuda".
        where: name of the device.
        date: when they were measured.
        model: values of the keys that the times depend on.
        seconds: seconds of an iteration by (clips of a process, frames, crop, grouped BN). None if
            the shape ran out of memory.
    """

    path: Path
    device: str
    where: str
    date: str
    model: Mapping[str, object]
    seconds: Mapping[tuple[int, int, int, bool], float | None]

    @property
    def source(self) -> str:
        """The file, the device and the date as text."""
        return f"{self.path}, measured on {self.where} ({self.device}), {self.date}"

    def of_recipe(self, recipe: Recipe) -> SecondsPerIteration:
        """Return the function from a shape to the seconds of an iteration of a recipe.

        It raises MisfitError for a shape that was not measured.

        Raises:
            MisfitError: The file is of another model, precision or device, or it lacks a shape of
                the recipe's schedule.
        """
        # A key that the file lacks is newer than the file, so the default was measured.
        measured = {"device": self.device, **model_of(default_recipe()), **self.model}
        wanted = {"device": device_of(recipe), **model_of(recipe)}
        if differing := differences(measured, wanted, "here"):
            raise MisfitError(f"{self.path} is of another model: {'; '.join(differing)}")
        grouped = recipe.groups_batchnorm
        processes = recipe.world_size

        def look_up(shape: Shape) -> float:
            clips = shape.batch // processes
            key = (clips, shape.frames, shape.crop, grouped)
            if key not in self.seconds:
                raise MisfitError(
                    f"{self.path} has no time for {shape} on {processes} process(es), {clips} "
                    f"clips each, {'with' if grouped else 'without'} grouped BN"
                )
            if (seconds := self.seconds[key]) is None:
                raise MisfitError(f"{self.path}: {shape} ran out of memory on {self.where}")
            return seconds

        for shape, bn_size in shapes_to_measure(recipe):
            if (bn_size is not None) == grouped:
                look_up(shape)
        return look_up


def measured_timing(files: Sequence[StepTimes], recipe: Recipe) -> Timing:
    """Return the times of a recipe and of its baseline, each from the first file that fits.

    Raises:
        MisfitError: No file fits. The message has the reason for each file.
    """
    own, ours = _first_fit(files, recipe)
    other, baseline = _first_fit(files, without_multigrid(recipe))
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


def estimated_timing(recipe: Recipe, seconds: float, flops_per_clip: FlopsPerClip) -> Timing:
    """Return times that are proportional to training FLOPs.

    Args:
        recipe: the recipe.
        seconds: seconds of an iteration at the baseline's shape.
        flops_per_clip: function from (frames, crop) to the training FLOPs of a clip.

    Raises:
        ValueError: `seconds` is not a number above 0.
    """
    if not 0 < seconds < math.inf:
        raise ValueError(f"An iteration takes a number of seconds above 0, not {seconds:g}.")
    base = recipe.base_shape

    def work(shape: Shape) -> float:
        return shape.batch * flops_per_clip(shape.frames, shape.crop)

    def estimate(shape: Shape) -> float:
        return seconds * work(shape) / work(base)

    source = f"an estimate, from {seconds:g} s at the baseline's shape and the training FLOPs of"
    return Timing(estimate, estimate, f"{source} the others")


def shapes_to_measure(recipe: Recipe) -> list[tuple[Shape, int | None]]:
    """Return the shapes of a recipe's schedule with their BN sizes.

    The first entry is the baseline's shape with its BN. A shape with several BN sizes gets the
    smallest one, which means the most groups.
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
    """Return the keys of a recipe that step times depend on, with their values."""
    values = values_by_key(recipe)
    others = {f"MODEL.ARCH {arch}" for arch in FAMILIES if arch != recipe.model.arch}
    return {k: values[k] for k in sorted(speed_keys()) if KEYS[k].needs not in others}


def device_of(recipe: Recipe) -> str:
    """Return the kind of device that a recipe trains on, "cuda" or "cpu"."""
    return "cuda" if recipe.num_gpus > 0 else "cpu"


def write_step_times(
    path: Path,
    recipe: Recipe,
    device: torch.device,
    seconds: Mapping[tuple[Shape, int | None], float],
) -> None:
    """Write the step times of a recipe, to be read by `read_step_times`.

    Args:
        path: the file. Its folder is made.
        recipe: the recipe.
        device: where the steps were timed.
        seconds: seconds of a step by shape and BN size.
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
    """Read a file of benchmarks/step_time.py.

    Raises:
        ValueError: The file cannot be read, or is not such a file.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT or not content["shapes"]:
            raise ValueError(
                f"its format is not {FORMAT}, or it has no shapes, which --variants recipe adds"
            )
        device = content["device"]
        seconds = dict(map(_time, content["shapes"]))
        model = dict(content["model"])
        return StepTimes(path, device["type"], device["name"], content["date"], model, seconds)
    except OSError as error:
        raise ValueError(f"The step times {path} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a file of step times: {error!r}") from error


def _time(row: Any) -> tuple[tuple[int, int, int, bool], float | None]:
    _, frames, crop = row["shape"]
    seconds = None if row["seconds"] is None else float(row["seconds"]["median"])
    if seconds is not None and not 0 < seconds < math.inf:
        raise ValueError(f"the shape {row['shape']} takes {seconds} seconds")
    return (row["local_clips"], frames, crop, row["bn_size"] is not None), seconds
