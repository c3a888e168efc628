"""Seconds of a recipe's iterations: measured, or estimated from one number.

A time that benchmarks/step_time.py measured holds for what one process computes: its clips, frames
and crop. So its file serves every recipe with the same model, precision and kind of device whose
processes have these shapes, on any number of them, without communication.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multigrid import Shape
from multigrid.cost import FlopsPerClip, SecondsPerIteration
from slowfast_patches.config.families import FAMILIES
from slowfast_patches.config.keys import speed_keys
from slowfast_patches.config.recipe import KEYS, Recipe, default_recipe, differences, keys_of
from slowfast_patches.config.schedule import schedule_of, without_multigrid
from slowfast_patches.launch.launch import processes_of

__all__ = [
    "FORMAT",
    "MANY_VIDEOS",
    "UNTIMED",
    "MisfitError",
    "StepTimes",
    "Timing",
    "device_of",
    "estimated_timing",
    "measured_timing",
    "model_of",
    "read_step_times",
    "shapes_to_measure",
]

FORMAT = 1
"""Version of the files."""

MANY_VIDEOS = 10**7
"""So long a training that every phase has an iteration of each of its shapes."""


class MisfitError(ValueError):
    """Step times that do not fit a recipe; with the reason."""


@dataclass(frozen=True)
class Timing:
    """Seconds of an iteration of a recipe, and of its baseline, whose BN differs.

    `source` is their origin as text. All are None where nothing is known.
    """

    ours: SecondsPerIteration | None
    baseline: SecondsPerIteration | None
    source: str | None


UNTIMED = Timing(None, None, None)


@dataclass(frozen=True)
class StepTimes:
    """Measured step times. `device` is "cpu" or "cuda", `where` the name of the machine.

    `seconds` of an iteration are by the clips of a process, frames, crop, and whether BN is in
    groups; None where the shape did not fit into the device's memory.
    """

    path: Path
    device: str
    where: str
    date: str
    model: Mapping[str, object]
    seconds: Mapping[tuple[int, int, int, bool], float | None]

    @property
    def source(self) -> str:
        """The file and what it was measured on."""
        return f"{self.path}, measured on {self.where} ({self.device}), {self.date}"

    def of_recipe(self, recipe: Recipe) -> SecondsPerIteration:
        """Seconds of an iteration of a recipe at each shape of its schedule.

        Raises:
            MisfitError: another model, precision or device was measured, or not all shapes were;
                another shape raises it too.
        """
        # What a file lacks is a key newer than it: measured at the default.
        measured = {"device": self.device, **model_of(default_recipe()), **self.model}
        wanted = {"device": device_of(recipe), **model_of(recipe)}
        if differing := differences(measured, wanted, "here"):
            raise MisfitError(f"{self.path} is of another model: {'; '.join(differing)}")
        grouped = recipe.groups_batchnorm
        processes = processes_of(recipe)

        def look_up(shape: Shape) -> float:
            clips = shape.batch // processes
            key = (clips, shape.frames, shape.crop, grouped)
            if key not in self.seconds:
                raise MisfitError(
                    f"{self.path} has no time for {shape} on {processes} process(es), {clips} "
                    f"clips each, {'with' if grouped else 'without'} BN groups"
                )
            if (seconds := self.seconds[key]) is None:
                raise MisfitError(f"{self.path}: {shape} ran out of memory on {self.where}")
            return seconds

        for shape, bn_size in shapes_to_measure(recipe):
            if (bn_size is not None) == grouped:
                look_up(shape)
        return look_up


def measured_timing(files: Sequence[StepTimes], recipe: Recipe) -> Timing:
    """The times of a recipe and of its baseline, each from the first file that has them.

    Raises:
        MisfitError: no file has them; with the reason for each.
    """
    own, ours = _first_fit(files, recipe)
    other, baseline = _first_fit(files, without_multigrid(recipe))
    sources = list(dict.fromkeys([own.source, other.source]))
    if (processes := processes_of(recipe)) > 1:
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
    """Times in proportion to training FLOPs, from those of an iteration at the baseline's shape.

    Raises:
        ValueError: `seconds` is not a number above 0.
    """
    if not 0 < seconds < math.inf:
        raise ValueError(f"an iteration takes a number of seconds above 0, not {seconds:g}")
    base = recipe.base_shape

    def work(shape: Shape) -> float:
        return shape.batch * flops_per_clip(shape.frames, shape.crop)

    def estimate(shape: Shape) -> float:
        return seconds * work(shape) / work(base)

    source = f"an estimate, from {seconds:g} s at the baseline's shape and the training FLOPs of"
    return Timing(estimate, estimate, f"{source} the others")


def shapes_to_measure(recipe: Recipe) -> list[tuple[Shape, int | None]]:
    """Every shape of a recipe's schedule with its BN size, after the baseline's shape and BN.

    A shape that phases meet with several BN sizes has the smallest, which makes the most groups.
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
    """The keys of a recipe that decide how long an iteration of one shape takes."""
    values = keys_of(recipe)
    others = {f"MODEL.ARCH {arch}" for arch in FAMILIES if arch != recipe.model.arch}
    return {k: values[k] for k in sorted(speed_keys()) if KEYS[k].needs not in others}


def device_of(recipe: Recipe) -> str:
    """The kind of device that a recipe trains on: "cuda" or "cpu"."""
    return "cuda" if recipe.num_gpus > 0 else "cpu"


def read_step_times(path: str | Path) -> StepTimes:
    """Read a file that benchmarks/step_time.py wrote.

    Raises:
        ValueError: it cannot be read, or is not such a file.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT or not content["shapes"]:
            raise ValueError(
                f"its format is not {FORMAT}, or it has no shapes of --variants recipe"
            )
        device = content["device"]
        seconds = dict(map(_time, content["shapes"]))
        model = dict(content["model"])
        return StepTimes(path, device["type"], device["name"], content["date"], model, seconds)
    except OSError as error:
        raise ValueError(f"the step times {path} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a step-time file: {error!r}") from error


def _time(row: Any) -> tuple[tuple[int, int, int, bool], float | None]:
    _, frames, crop = row["shape"]
    seconds = None if row["seconds"] is None else float(row["seconds"]["median"])
    if seconds is not None and not 0 < seconds < math.inf:
        raise ValueError(f"the shape {row['shape']} takes {seconds} seconds")
    return (row["local_clips"], frames, crop, row["bn_size"] is not None), seconds
