"""Implementations of a training step, and cases: one shape timed with one implementation."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import Mark, StepClock, Timed, quartiles, take_turns, wait_for
from torch import Tensor, nn

from multigrid import Batch, Shape, Step
from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.device import keep_memory_whole, process_device, set_up_device
from slowfast_patches.launch.launch import resolve
from slowfast_patches.models.build import build_model
from slowfast_patches.models.solver import Precision
from slowfast_patches.plan.step_times import device_of
from slowfast_patches.train.step import Stepper, expect_graphs
from slowfast_patches.train.warm_up import made_up_batch

WARM_UP = 2
"""Iterations of each shape before timing, in which kernels are chosen and memory is allocated."""

_KERNELS = "16384"
"""Size of oneDNN's cache of kernels.

The default of 1,024 holds the kernels of three shapes of a SlowFast, enough for a training. Here
there are shapes × variants, whose kernels would be compiled again in each round.
"""

RATE = 1e-4
"""Learning rate, so low that training on noise keeps activations in the usual range."""


def checked_recipe(path: str | Path, overrides: Sequence[object]) -> Recipe:
    """Load a recipe, scale it to this run's processes and check it.

    Raises:
        ValueError: the recipe cannot be trained, or needs a GPU and there is none.
    """
    recipe = resolve(load_recipe(path, overrides))
    check_recipe(recipe)
    if device_of(recipe) == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"NUM_GPUS is {recipe.num_gpus}, but there is no GPU. Set NUM_GPUS 0 to use the CPU"
        )
    return recipe


def prepare_device(recipe: Recipe) -> torch.device:
    """Set up memory allocation and random numbers as in training, and return the device."""
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

    def time(self, step: Step, batch: Batch, iterations: int) -> Timed:
        """Return the mean seconds of an iteration and its parts.

        Raises:
            torch.OutOfMemoryError: the shape does not fit into the GPU's memory.
        """
        set_up_device(self.recipe)  # the previous variant may have changed global settings
        wait_for(self.device)
        # CPU time of a single thread excludes the time it waits for a core on a busy machine.
        single = torch.get_num_threads() == 1
        clock = StepClock(self.device, time.process_time if single else time.perf_counter)
        for _ in range(iterations):
            clock.start()
            self.take(step, batch, clock.mark)
        wait_for(self.device)
        return clock.read()

    @abstractmethod
    def take(self, step: Step, batch: Batch, mark: Mark) -> None:
        """Train one iteration, and call `mark` once the work of a part is queued."""

    @abstractmethod
    def model_and_optimizer(self, step: Step) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return the model that trains a step, and its optimizer."""

    def clean_up(self, step: Step) -> None:
        """Free the memory that an interrupted iteration has left allocated."""
        self.model_and_optimizer(step)[1].zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def precision_name(self) -> str:
        """Return the precision of the model: "float32", "bfloat16" or "float16"."""
        return "float32"

    def kept_bytes(self, step: Step) -> int:
        """Count the bytes kept between steps: weights, buffers, gradients, optimizer state."""
        model, optimizer = self.model_and_optimizer(step)
        tensors = [*model.parameters(), *model.buffers()]
        tensors += [p.grad for p in model.parameters() if p.grad is not None]
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
        return sum(t.numel() * t.element_size() for t in tensors)


class Bench(Steps):
    """Training step of this package.

    Args:
        recipe: the recipe, with the switches to measure.
        device: the device to measure on.
    """

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        super().__init__(recipe, device)
        self.model = build_model(recipe, grouped_bn=True).to(device)
        self.stepper = Stepper(recipe, self.model, device)

    def take(self, step: Step, batch: Batch, mark: Mark) -> None:
        self.stepper(step, batch, mark=mark)

    def model_and_optimizer(self, step: Step) -> tuple[nn.Module, torch.optim.Optimizer]:
        return self.model, self.stepper.optimizer

    def clean_up(self, step: Step) -> None:
        super().clean_up(step)
        self.stepper.precision = Precision(self.recipe, self.device)

    def precision_name(self) -> str:
        with self.stepper.precision.autocast():
            if torch.is_autocast_enabled(self.device.type):
                return str(torch.get_autocast_dtype(self.device.type)).removeprefix("torch.")
        return "float32"


class Case:
    """A shape to time with one implementation, and its measurements so far.

    Args:
        bench: the implementation of the training step.
        shape: the shape of the mini-batch of all processes.
        bn_size: clips per BN group.
        batch: the clips of one process. None means synthetic clips.
    """

    def __init__(
        self, bench: Steps, shape: Shape, bn_size: int | None, batch: Batch | None = None
    ) -> None:
        self.bench = bench
        self.shape = shape
        self.bn_size = bn_size
        self.clips = shape.batch // bench.recipe.world_size
        shared = None if bn_size is None else min(bn_size, self.clips)
        self.step = Step(0, 0, shape, RATE, shared, 0, 0.0)
        self.batch = made_up_batch(bench.recipe, self.clips, shape) if batch is None else batch
        self.iterations = 0
        self.rounds = list[float]()
        self.parts: dict[str, list[float]] = {}
        self.peak_bytes: int | None = None  # includes weights and optimizer; None without a GPU
        self.failure: str | None = None

    def warm_up(self, seconds: float) -> None:
        """Choose the number of iterations per round, and measure the memory of one.

        A round should take about `seconds`. The first steps do not count, because cuDNN tries
        algorithms in them, some of which need much memory.
        """
        if self._try(WARM_UP) is None:
            return
        others = self._bytes_of_others()
        if (took := self._try(1)) is not None:
            self.iterations = max(1, round(seconds / took.seconds))
            if others is not None:
                self.peak_bytes = torch.cuda.max_memory_allocated() - others

    def time(self) -> None:
        """Measure one more round."""
        if self.failure is None and (took := self._try(self.iterations)) is not None:
            self.rounds.append(took.seconds)
            for part, seconds in took.parts.items():
                self.parts.setdefault(part, []).append(seconds)

    def _try(self, iterations: int) -> Timed | None:
        try:
            return self.bench.time(self.step, self.batch, iterations)
        except torch.OutOfMemoryError:
            self.failure = "out of memory"
        except RuntimeError as error:
            # Only compilation may fail here. Any other error is a bug.
            if not self.bench.recipe.train.compile:
                raise
            self.failure = " ".join(str(error).split())[:200]
        self.bench.clean_up(self.step)  # outside of except, where the error refers to activations
        return None

    def _bytes_of_others(self) -> int | None:
        """Start measuring the GPU's peak memory.

        Returns:
            The bytes that other cases keep on the GPU, or None without a GPU.
        """
        if self.bench.device.type != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() - self.bench.kept_bytes(self.step)

    def to_json(self) -> dict[str, Any]:
        """Return the seconds of an iteration, or None and the "failure"."""
        if self.failure is not None:
            return {"seconds": None, "failure": self.failure}
        return {
            "seconds": quartiles(self.rounds),
            "parts": {part: quartiles(rounds) for part, rounds in self.parts.items()},
            "peak_bytes": self.peak_bytes,
            "iterations_per_round": self.iterations,
        }


def time_in_turns(cases: Sequence[Case], rounds: int, seconds: float) -> None:
    """Time cases in interleaved rounds.

    Args:
        cases: the cases to time.
        rounds: the number of rounds.
        seconds: approximate time for all rounds of a case. Each round has at least one iteration.
    """
    expect_graphs(sum(bool(case.bench.recipe.train.compile) for case in cases))
    for case in cases:
        case.warm_up(seconds / rounds)
    take_turns(dict(enumerate(case.time for case in cases)), rounds)
