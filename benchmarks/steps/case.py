"""A way to take training steps, and what is timed: one shape taken in one such way."""

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
from slowfast_patches.launch.device import keep_memory_whole, set_up_device
from slowfast_patches.launch.launch import for_processes, process_device, processes_of
from slowfast_patches.models.build import build_model
from slowfast_patches.models.solver import Precision
from slowfast_patches.plan.step_times import device_of
from slowfast_patches.train.step import Stepper, expect_graphs
from slowfast_patches.train.warm_up import made_up_batch

__all__ = [
    "Bench",
    "Case",
    "Steps",
    "checked_recipe",
    "prepare_device",
    "time_in_turns",
]

WARM_UP = 2
"""Iterations of each shape before anything is timed: kernels are chosen, memory is claimed."""

_KERNELS = "16384"
"""Kernels that oneDNN keeps. Its own 1,024 hold those of three shapes of a SlowFast, as a training
has in turn; here there are shapes × variants, which would be compiled anew in each round."""

RATE = 1e-4
"""The learning rate: so low that training on noise leaves the numbers of an ordinary size."""


def checked_recipe(path: str | Path, overrides: Sequence[object]) -> Recipe:
    """A recipe as this run's processes train it, checked.

    Raises:
        ValueError: the recipe cannot train, or needs a GPU on a machine without one.
    """
    recipe = for_processes(load_recipe(path, overrides))
    check_recipe(recipe, processes_of(recipe))
    if device_of(recipe) == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"NUM_GPUS is {recipe.num_gpus} and there is no GPU; NUM_GPUS 0 is the CPU"
        )
    return recipe


def prepare_device(recipe: Recipe) -> torch.device:
    """The device that a recipe is measured on; its memory and random numbers as in training."""
    keep_memory_whole()
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _KERNELS)
    torch.manual_seed(recipe.rng_seed)
    return process_device(recipe, 0)


class Steps(ABC):
    """Some way to train on one shape after another, timed."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe = recipe
        self.device = device
        set_up_device(recipe)

    def time(self, step: Step, batch: Batch, iterations: int) -> Timed:
        """Seconds of an iteration and its parts, over some of them.

        Raises:
            torch.OutOfMemoryError: the GPU has no room for the shape.
        """
        set_up_device(self.recipe)  # another one had its turn
        wait_for(self.device)
        # A single thread's own time leaves out what it waits for a core on a busy machine.
        single = torch.get_num_threads() == 1
        clock = StepClock(self.device, time.process_time if single else time.perf_counter)
        for _ in range(iterations):
            clock.start()
            self.take(step, batch, clock.mark)
        wait_for(self.device)
        return clock.read()

    @abstractmethod
    def take(self, step: Step, batch: Batch, mark: Mark) -> None:
        """One iteration; calls `mark` once the work of a part is queued."""

    @abstractmethod
    def trained(self, step: Step) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The model that takes a step, and its optimizer."""

    def forget(self, step: Step) -> None:
        """Give back what an iteration that broke off has left behind."""
        self.trained(step)[1].zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def precision_name(self) -> str:
        """What the model computes in: "float32", "bfloat16" or "float16"."""
        return "float32"

    def kept_bytes(self, step: Step) -> int:
        """Bytes on the device that outlast a step: weights, gradients, the optimizer's state."""
        model, optimizer = self.trained(step)
        tensors = [*model.parameters(), *model.buffers()]
        tensors += [p.grad for p in model.parameters() if p.grad is not None]
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
        return sum(t.numel() * t.element_size() for t in tensors)


class Bench(Steps):
    """A model and what trains it, as training has them.

    Args:
        recipe: the recipe, with the switches that are measured.
        device: where it is measured.
    """

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        super().__init__(recipe, device)
        self.model = build_model(recipe, grouped_bn=True).to(device)
        self.stepper = Stepper(recipe, self.model, device)

    def take(self, step: Step, batch: Batch, mark: Mark) -> None:
        self.stepper(step, batch, mark=mark)

    def trained(self, step: Step) -> tuple[nn.Module, torch.optim.Optimizer]:
        return self.model, self.stepper.optimizer

    def forget(self, step: Step) -> None:
        super().forget(step)
        self.stepper.precision = Precision(self.recipe, self.device)

    def precision_name(self) -> str:
        with self.stepper.precision.autocast():
            if torch.is_autocast_enabled(self.device.type):
                return str(torch.get_autocast_dtype(self.device.type)).removeprefix("torch.")
        return "float32"


class Case:
    """A shape with its BN size, the clips of one process, and what was measured so far.

    Args:
        batch: the clips to train on; made up where none are given.
    """

    def __init__(
        self, bench: Steps, shape: Shape, bn_size: int | None, batch: Batch | None = None
    ) -> None:
        self.bench = bench
        self.shape = shape
        self.bn_size = bn_size
        self.clips = shape.batch // processes_of(bench.recipe)
        shared = None if bn_size is None else min(bn_size, self.clips)
        self.step = Step(0, 0, shape, RATE, shared, 0, 0.0)
        self.batch = made_up_batch(bench.recipe, self.clips, shape) if batch is None else batch
        self.iterations = 0
        self.rounds = list[float]()
        self.parts: dict[str, list[float]] = {}
        self.peak_bytes: int | None = None  # with what the model keeps; None without a GPU
        self.failure: str | None = None

    def warm_up(self, seconds: float) -> None:
        """Choose as many iterations a round as take about `seconds`, and note the memory of one.

        The first steps are left out of that, for cuDNN tries its convolutions there, some of which
        take much.
        """
        if self._try(WARM_UP) is None:
            return
        others = self._bytes_of_others()
        if (took := self._try(1)) is not None:
            self.iterations = max(1, round(seconds / took.seconds))
            if others is not None:
                self.peak_bytes = torch.cuda.max_memory_allocated() - others

    def time(self) -> None:
        """One more round."""
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
            # Without the compiler, what fails here is a fault of ours.
            if not self.bench.recipe.train.compile:
                raise
            self.failure = " ".join(str(error).split())[:200]
        self.bench.forget(self.step)  # here the error no longer holds on to the activations
        return None

    def _bytes_of_others(self) -> int | None:
        """Begin to watch the GPU's memory; bytes that others keep there, None without a GPU."""
        if self.bench.device.type != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() - self.bench.kept_bytes(self.step)

    def to_json(self) -> dict[str, Any]:
        """The seconds of an iteration, None with the `failure` where there are none."""
        if self.failure is not None:
            return {"seconds": None, "failure": self.failure}
        return {
            "seconds": quartiles(self.rounds),
            "parts": {part: quartiles(rounds) for part, rounds in self.parts.items()},
            "peak_bytes": self.peak_bytes,
            "iterations_per_round": self.iterations,
        }


def time_in_turns(cases: Sequence[Case], rounds: int, seconds: float) -> None:
    """All `rounds` of a case together take about `seconds`, but an iteration a round at least."""
    expect_graphs(sum(bool(case.bench.recipe.train.compile) for case in cases))
    for case in cases:
        case.warm_up(seconds / rounds)
    take_turns(dict(enumerate(case.time for case in cases)), rounds)
