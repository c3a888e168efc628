"""Training step implementations to measure, and cases.

A case is one shape that is measured with one implementation.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import quartiles, take_turns
from torch import nn

from multigrid import Batch, ScheduleStep, Shape
from slowfast_patches.config import check_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets import load_with_classes
from slowfast_patches.launch.device import keep_memory_whole, process_device, set_up_device
from slowfast_patches.launch.launch import resolve
from slowfast_patches.models.build_model import build_model
from slowfast_patches.plan.step_times import device_of
from slowfast_patches.train.step import Stepper, expect_graphs
from slowfast_patches.train.step_timer import Mark, Timed, time_step, timed_step

WARM_UP = 2
"""Number of iterations of each shape before the measurement. In these iterations, kernels are
chosen and memory is allocated."""

_KERNELS = "16384"
"""Capacity of oneDNN's kernel cache.

The default of 1,024 is enough for the kernels of three shapes of a SlowFast model, and for
training. The benchmark alternates between many more shapes and variants. With the default capacity,
their kernels would be compiled again in each round.
"""


def checked_recipe(path: str | Path, overrides: Sequence[object]) -> Recipe:
    """Load a recipe, scale it to the number of training processes, and check it.

    Raises:
        ValueError: The recipe cannot be trained, or it needs a GPU but this machine has no GPU.
    """
    recipe = resolve(load_with_classes(path, overrides))
    check_recipe(recipe)
    if device_of(recipe) == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"NUM_GPUS is {recipe.num_gpus}, but this machine has no GPU. Set NUM_GPUS 0 to "
            "measure the CPU"
        )
    return recipe


def prepare_device(recipe: Recipe) -> torch.device:
    """Set up memory allocation and the random seed as in training, and return the device."""
    keep_memory_whole()
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _KERNELS)
    torch.manual_seed(recipe.rng_seed)
    return process_device(recipe, 0)


class Steps(ABC):
    """Base class of the implementations of a training step."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe = recipe
        self.device = device
        set_up_device(recipe)

    def time(self, step: ScheduleStep, batch: Batch, iterations: int) -> Timed:
        """Train several iterations, and return the mean time of an iteration and of its parts.

        Raises:
            torch.OutOfMemoryError: The shape does not fit into the memory of the GPU.
        """
        set_up_device(self.recipe)  # the previous variant may have changed global settings
        return time_step(self.take, step, batch, iterations, self.device)

    @abstractmethod
    def take(self, step: ScheduleStep, batch: Batch, mark: Mark) -> None:
        """Train one iteration.

        Args:
            step: The iteration.
            batch: The mini-batch.
            mark: Function to call with the name of each part of the iteration, such as "forward",
                after its work has been queued on the device.
        """

    @abstractmethod
    def model_and_optimizer(self, step: ScheduleStep) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return the model and the optimizer that are used in a step."""


class Bench(Steps):
    """Training step as implemented by this package, in contrast to PySlowFast.

    Args:
        recipe: The recipe, with the switches to measure.
        device: The device to measure on.
    """

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        super().__init__(recipe, device)
        self.model = build_model(recipe, grouped_bn=True).to(device)
        self.stepper = Stepper(recipe, self.model, device)

    def take(self, step: ScheduleStep, batch: Batch, mark: Mark) -> None:
        self.stepper(step, batch, mark=mark)

    def model_and_optimizer(self, step: ScheduleStep) -> tuple[nn.Module, torch.optim.Optimizer]:
        return self.model, self.stepper.optimizer


class Case:
    """Shape to measure with one implementation, and the measurements so far.

    Args:
        bench: The implementation of the training step.
        shape: Shape of the global mini-batch, which all processes share.
        bn_group_size: Number of clips per BN group. None means the whole batch of the process.
        batch: Mini-batch of one process.
    """

    def __init__(self, bench: Steps, shape: Shape, bn_group_size: int | None, batch: Batch) -> None:
        self.bench = bench
        self.shape = shape
        self.bn_group_size = bn_group_size
        self.clips = shape.batch // bench.recipe.world_size
        self.step = timed_step(shape, self.clips, bn_group_size)
        self.batch = batch
        self.iterations = 0
        self.rounds = list[Timed]()
        self.failure: str | None = None

    def warm_up(self, seconds: float) -> None:
        """Choose the number of iterations per round, which should take about `seconds`."""
        if self._try(WARM_UP) and (took := self._try(1)):
            self.iterations = max(1, round(seconds / took.seconds))

    def time(self) -> None:
        """Measure another round, unless an earlier round has failed."""
        if self.failure is None and (took := self._try(self.iterations)) is not None:
            self.rounds.append(took)

    def _try(self, iterations: int) -> Timed | None:
        try:
            return self.bench.time(self.step, self.batch, iterations)
        except torch.OutOfMemoryError:
            self.failure = "out of memory"
        # Free memory after the `except` block, in which the error still keeps activations alive.
        self.bench.model_and_optimizer(self.step)[1].zero_grad()
        torch.cuda.empty_cache()
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the measurements as plain data.

        If the case has failed, "seconds" is None and "failure" is the reason.
        """
        if self.failure is not None:
            return {"seconds": None, "failure": self.failure}
        return {
            "seconds": quartiles([took.seconds for took in self.rounds]),
            "parts": {
                part: quartiles([took.parts[part] for took in self.rounds])
                for part in self.rounds[0].parts
            },
            "iterations_per_round": self.iterations,
        }


def time_in_turns(cases: Sequence[Case], rounds: int, seconds: float) -> None:
    """Measure cases in interleaved rounds.

    Args:
        cases: The cases to measure.
        rounds: Number of rounds.
        seconds: Approximate time in seconds for all rounds of one case. Each round has at least one
            iteration.
    """
    expect_graphs(sum(bool(case.bench.recipe.train.compile) for case in cases))
    for case in cases:
        case.warm_up(seconds / rounds)
    take_turns(dict(enumerate(case.time for case in cases)), rounds)
