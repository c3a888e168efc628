"""Measured seconds of a training iteration: the files of benchmarks/step_time.py, and what they say
of a recipe.

A time holds for what one process computes: its clips, frames and crop. So a file serves every
recipe with the same model, precision and kind of device whose processes have these shapes, on
however many of them; what processes say to each other is not in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import yaml

from multigrid import Shape
from multigrid.cost import SecondsPerIteration
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.launch.launch import processes_of

__all__ = [
    "FORMAT",
    "MANY_VIDEOS",
    "MisfitError",
    "ShapeTime",
    "StepTimes",
    "device_of",
    "fitting_step_times",
    "model_of",
    "read_step_times",
    "shapes_to_measure",
]

FORMAT = 1
"""Version of the files."""

T = TypeVar("T")

MANY_VIDEOS = 10**7
"""So long a training that every phase has an iteration of each of its shapes."""

_ADDED: Mapping[str, object] = {
    "MODEL.ACT_CHECKPOINT": False,
    "MODEL.CHANNELS_LAST": False,
    "MODEL.EMA_DECAY": 0.0,
    "SOLVER.ACCUMULATION_STEPS": 1,
    "SOLVER.FUSED": False,
    "TRAIN.COMPILE": False,
    "TRAIN.CUDA_GRAPHS": False,
    "TRAIN.CUDNN_BENCHMARK": True,
    "TRAIN.DETERMINISTIC": False,
    "TRAIN.TF32": True,
}
"""Keys that files may lack, for they are older than these: what was measured there."""

_MODEL = (
    "MODEL.ARCH",
    "MODEL.NUM_CLASSES",
    "RESNET",
    "SLOWFAST",
    "NONLOCAL",
    "SOLVER.OPTIMIZING_METHOD",
    "TRAIN.MIXED_PRECISION",
    *_ADDED,
)
"""Keys and sections that decide how long an iteration takes."""

_SAME_SPEED = ("RESNET.ZERO_INIT_FINAL_BN",)
"""Keys in them that do not: they only say what weights a model starts with."""


class MisfitError(ValueError):
    """Step times that say nothing of a recipe; the message says why."""


@dataclass(frozen=True)
class ShapeTime:
    """Seconds of an iteration of `shape` (over all processes) on a process with `clips` of it.

    `bn_size` is the clips that share batch normalisation statistics, None where it is left to the
    batch. `seconds` is None where the shape did not fit into the device's memory.
    """

    shape: Shape
    clips: int
    bn_size: int | None
    seconds: float | None


@dataclass(frozen=True)
class StepTimes:
    """What a file says. `device` is "cpu" or "cuda", `where` the machine in words."""

    path: Path
    device: str
    where: str
    date: str
    model: Mapping[str, object]
    times: tuple[ShapeTime, ...]

    @property
    def switches(self) -> dict[str, object]:
        """What makes steps faster or slower, where it is not at its default."""
        defaults = {"TRAIN.MIXED_PRECISION": False, **_ADDED}
        return {
            key: value
            for key, value in sorted(self.model.items())
            if key in defaults and value != defaults[key]
        }

    def seconds_per_iteration(self, recipe: Recipe) -> SecondsPerIteration:
        """Seconds of an iteration of a recipe at each shape of its schedule.

        With multigrid BN is in groups, without it is the batch's: these were measured apart.

        Raises:
            MisfitError: another model, precision or device was measured, or not all shapes were;
                asking for another shape raises it too.
        """
        self._check_model(recipe)
        grouped, processes = recipe.groups_batchnorm, processes_of(recipe)
        known = {
            (time.clips, time.shape.frames, time.shape.crop): time.seconds
            for time in self.times
            if (time.bn_size is not None) == grouped
        }

        def look_up(shape: Shape) -> float:
            key = (shape.batch // processes, shape.frames, shape.crop)
            if key not in known:
                raise MisfitError(
                    f"{self.path} has no time for {shape} on {processes} process(es), {key[0]} "
                    f"clips each, {'with' if grouped else 'without'} BN groups"
                )
            seconds = known[key]
            if seconds is None:
                raise MisfitError(f"{self.path}: {shape} ran out of memory on {self.where}")
            return seconds

        for shape, bn_size in shapes_to_measure(recipe):
            if (bn_size is not None) == grouped:
                look_up(shape)
        return look_up

    def _check_model(self, recipe: Recipe) -> None:
        if self.device != device_of(recipe):
            raise MisfitError(
                f"{self.path} was measured on {self.device}, and NUM_GPUS {recipe.num_gpus} "
                f"trains on "
                f"{device_of(recipe)}"
            )
        measured, wanted = {**_ADDED, **self.model}, model_of(recipe)
        differing = [
            f"{key} {measured.get(key, '(absent)')} there, {wanted.get(key, '(absent)')} here"
            for key in sorted(measured.keys() | wanted.keys())
            if measured.get(key, _ABSENT) != wanted.get(key, _ABSENT)
        ]
        if differing:
            raise MisfitError(f"{self.path} is of another model: {'; '.join(differing)}")


_ABSENT = object()


def fitting_step_times(files: Sequence[StepTimes], recipe: Recipe) -> StepTimes:
    """The first of some files that has the times of a recipe.

    Raises:
        MisfitError: none has; says why of each.
    """
    reasons = list[str]()
    for times in files:
        try:
            times.seconds_per_iteration(recipe)
        except MisfitError as error:
            reasons.append(str(error))
        else:
            return times
    raise MisfitError("; ".join(reasons) or "no step times are given")


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
    tree = yaml.safe_load(recipe.text)
    found: dict[str, object] = {}
    for name in (*_MODEL, "TSM") if recipe.model.arch == "tsm" else _MODEL:
        section, _, key = name.partition(".")
        inside = tree[section]
        found |= {f"{section}.{k}": inside[k] for k in ([key] if key else inside)}
    return {key: value for key, value in sorted(found.items()) if key not in _SAME_SPEED}


def device_of(recipe: Recipe) -> str:
    """The kind of device that a recipe trains on: "cuda" or "cpu"."""
    return "cuda" if recipe.num_gpus > 0 else "cpu"


def read_step_times(path: str | Path) -> StepTimes:
    """What benchmarks/step_time.py wrote.

    Raises:
        ValueError: no such file, or not one of these, or of another version; says what is wrong.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the step times {path} cannot be read: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path} is no step-time file: not JSON ({error})") from error
    try:
        return _parse(path, content)
    except _WrongContentError as error:
        raise ValueError(f"{path} is no step-time file: {error}") from None


class _WrongContentError(Exception):
    """A field that is missing or is not what it should be."""


def _parse(path: Path, content: object) -> StepTimes:
    version = _field(content, "format", int)
    if version != FORMAT:
        raise _WrongContentError(f"its format is {version}, and this version reads {FORMAT}")
    device, times = _field(content, "device", dict), _field(content, "shapes", list)
    if not times:
        raise _WrongContentError("it has no shapes of a recipe as it is (--variants recipe)")
    return StepTimes(
        path=path,
        device=_field(device, "type", str),
        where=_field(device, "name", str),
        date=_field(content, "date", str),
        model=_field(content, "model", dict),
        times=tuple(_parse_time(row) for row in times),
    )


def _parse_time(row: object) -> ShapeTime:
    sides = _field(row, "shape", list)
    if len(sides) != 3 or not all(type(side) is int and side > 0 for side in sides):
        raise _WrongContentError(f"a shape is [clips, frames, crop], not {sides}")
    clips, bn_size = _field(row, "local_clips", int), _optional(row, "bn_size", int)
    spread, seconds = _optional(row, "seconds", dict), None
    if spread is not None:
        seconds = float(_field(spread, "median", float))
        if not (seconds > 0 and math.isfinite(seconds)):
            raise _WrongContentError(f"the shape {sides} takes {seconds} seconds")
    return ShapeTime(Shape(*sides), clips, bn_size, seconds)


def _optional(node: object, key: str, kind: type[T]) -> T | None:
    if isinstance(node, dict) and key in node and node[key] is None:
        return None
    return _field(node, key, kind)


def _field(node: object, key: str, kind: type[T]) -> T:
    """The value of a key, of the type it should have; a whole number is a number."""
    if not isinstance(node, dict) or key not in node:
        raise _WrongContentError(f"'{key}' is missing")
    value = node[key]
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise _WrongContentError(f"'{key}' is {value!r:.60}, not {_KINDS[kind]}")
    return cast(T, value)


_KINDS: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a mapping",
}
