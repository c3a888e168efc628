"""Measured step times, and their files.

benchmarks/step_time.py measures how long one process takes for a number of clips, frames and
pixels. The file with these times applies to all recipes with the same model, precision and device
type. The number of processes may differ if each process has the same shapes. The times do not
include communication between processes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from multigrid import Shape
from multigrid.cost import SecondsPerIteration
from multigrid.shapes import CostPerClip
from slowfast_patches.config.key_lists import speed_keys
from slowfast_patches.config.recipe import KEYS, Recipe, default_recipe, differences, values_by_key
from slowfast_patches.utils.errors import UserError, mistake_in
from slowfast_patches.utils.files import make_folder, write_text
from slowfast_patches.utils.machine import machine, versions

FORMAT = 1
"""Version of the file format."""


class MisfitError(UserError):
    """Error raised when a file of step times does not apply to a recipe."""


@dataclass(frozen=True)
class StepTimes:
    """Step times of a model on a device, from a file.

    Attributes:
        path: The file.
        device: Device type: "cpu" or "cuda".
        where: Name of the device.
        clock: Text that names the processor or GPU, the number of threads and the version of torch.
        date: Date of the measurement.
        model: Values of the keys that affect the times, by full key.
        seconds: Maps (clips per process, frames, crop, whether BN is grouped) to the seconds per
            iteration. Shapes that did not fit into memory are missing.
    """

    path: Path
    device: str
    where: str
    clock: str
    date: str
    model: Mapping[str, object]
    seconds: Mapping[tuple[int, int, int, bool], float]

    @property
    def source(self) -> str:
        """Text that names the file, the device and the date of the measurement."""
        return f"{self.path}, measured on {self.clock}, {self.date}"

    def check_model(self, recipe: Recipe) -> None:
        """Raise MisfitError if the file is for another model, precision or device type."""
        # A key that is missing in the file is newer than the file and had its default value.
        measured = {"device": self.device, **model_of(default_recipe()), **self.model}
        wanted = {"device": device_of(recipe), **model_of(recipe)}
        if differing := differences(measured, wanted):
            raise MisfitError(f"{self.path} is for another model: {'; '.join(differing.values())}")

    def of_recipe(self, recipe: Recipe) -> SecondsPerIteration:
        """Return a function from a shape to the seconds per iteration of a recipe.

        The returned function raises MisfitError for a shape that was not measured.

        Raises:
            MisfitError: The file is for another model, precision or device type.
        """
        self.check_model(recipe)

        def look_up(shape: Shape) -> float:
            clips = shape.batch // recipe.world_size
            key = (clips, shape.frames, shape.crop, recipe.groups_batchnorm)
            if key not in self.seconds:
                raise MisfitError(
                    f"{self.path} has no time for {shape} with {clips} clips per process"
                )
            return self.seconds[key]

        return look_up

    def seconds_per_clip(self, recipe: Recipe) -> CostPerClip:
        """Return a function from (frames, crop) to the seconds per clip.

        If several steps with these frames and this crop were measured, the one with the most clips
        is used. The function raises MisfitError if there is none.

        Raises:
            MisfitError: The file is for another model, precision or device type.
        """
        self.check_model(recipe)

        def look_up(frames: int, crop: int) -> float:
            wanted = [frames, crop, recipe.groups_batchnorm]
            found = {clips: time for (clips, *key), time in self.seconds.items() if key == wanted}
            if not found:
                raise MisfitError(f"{self.path} has no time for {frames} frames of {crop}² pixels")
            return found[max(found)] / max(found)

        return look_up


def model_of(recipe: Recipe) -> dict[str, object]:
    """Return the values of the keys that affect the step times of a recipe, by full key."""
    values = values_by_key(recipe)
    without_effect = {name for name, key in KEYS.items() if key.needs and key.needs(recipe)}
    return {name: values[name] for name in sorted({*speed_keys()} - without_effect)}


def device_of(recipe: Recipe) -> str:
    """Return the type of the device that a recipe trains on: "cuda" or "cpu"."""
    return "cuda" if recipe.num_gpus > 0 else "cpu"


def time_row(
    recipe: Recipe, shape: Shape, bn_group_size: int | None, seconds: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the row of one shape in a file of step times.

    Args:
        recipe: The recipe whose steps were timed.
        shape: Shape of the global mini-batch.
        bn_group_size: Number of clips that share BN statistics, or None for the clips of a process.
        seconds: Seconds per step, at least their "median". None if the shape could not be timed.
    """
    return {
        "shape": [shape.batch, shape.frames, shape.crop],
        "local_clips": shape.batch // recipe.world_size,
        "bn_group_size": bn_group_size,
        "seconds": seconds,
    }


def step_times_content(
    recipe: Recipe, device: torch.device, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the content of a file of step times, which `read_step_times` reads.

    Args:
        recipe: The recipe whose steps were timed.
        device: Device on which the steps were timed.
        rows: A `time_row` for each shape. A row may have more entries.
    """
    return {
        "format": FORMAT,
        "device": {"type": device.type, "name": device_name(device.type)},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "model": model_of(recipe),
        "shapes": list(rows),
    }


def write_step_times(path: Path, content: Mapping[str, Any]) -> None:
    """Write the content of a file of step times, and create its folder if necessary."""
    make_folder(path.parent)
    write_text(path, json.dumps(content, indent=2) + "\n")


def device_name(device: str) -> str:
    """Return the name of the processor or of the first GPU of this machine."""
    here = machine()
    return str(here["gpus"][0] if device == "cuda" else here["processor"])


def clock_of(device: str, name: str, threads: int | None, torch_version: str | None) -> str:
    """Return a text with the device, the number of threads and the version of torch."""
    used = [f"{name} ({device})"]
    if device == "cpu":
        used.append(f"{threads} threads" if threads else "an unknown number of threads")
    return ", ".join([*used, f"torch {torch_version}" if torch_version else "unknown torch"])


def clock_here(device: str) -> str:
    """Return a text with the device, the threads and the torch version of this process."""
    return clock_of(device, device_name(device), machine()["threads"], versions()["torch"])


def read_step_times(path: str | Path) -> StepTimes:
    """Read a file with `step_times_content`.

    Raises:
        ValueError: The file cannot be read, or has another format.
    """
    path = Path(path)
    wrong = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
    with mistake_in(f"{path} is not a file of step times", *wrong):
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT or not content["shapes"]:
            raise UserError("it has no shapes. Measure them with --variants recipe")
        device = content["device"]
        seconds = {
            (row["local_clips"], *row["shape"][1:], row["bn_group_size"] is not None): time[
                "median"
            ]
            for row in content["shapes"]
            if (time := row["seconds"])
        }
        model = dict(content["model"])
        threads = content.get("machine", {}).get("threads")
        torch_version = content.get("versions", {}).get("torch")
        clock = clock_of(device["type"], device["name"], threads, torch_version)
        date = content["date"]
        return StepTimes(path, device["type"], device["name"], clock, date, model, seconds)
