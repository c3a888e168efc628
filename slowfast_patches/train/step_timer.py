"""Measure the time of training steps on random clips, at any shape."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from multigrid import Batch, ScheduleStep, Shape
from slowfast_patches.train.dry_run import explain_failures, made_up_batch
from slowfast_patches.train.step import Stepper, expect_graphs

_ROUNDS, _STEPS = 2, 3
"""Number of rounds over all shapes, and number of timed steps of each shape in a round.

An untimed warm-up step precedes the timed steps.
"""
_RATE = 1e-4
"""Learning rate of timed steps. It is low, so that random clips do not make the model diverge."""

Mark = Callable[[str], None]
"""Function that takes the name of a part of a step. It is called when the work of this part has
been queued on the device."""


class Timed(NamedTuple):
    """Mean time of a step and of the parts of a step, in seconds.

    Attributes:
        seconds: Mean seconds of a step.
        parts: Maps each part, in order of execution, to its mean seconds.
    """

    seconds: float
    parts: dict[str, float]


class StepClock:
    """Measures the time of training steps and of their parts.

    On a GPU, the clock records CUDA events in the current stream and does not wait for them. The
    times are those of the work on the GPU, including gaps in which the GPU waits for the CPU. On
    the CPU, the clock calls `now`, which returns seconds.
    """

    def __init__(self, device: torch.device, now: Callable[[], float] = time.perf_counter) -> None:
        self._on_gpu = device.type == "cuda"
        self._now = now
        self._steps = list[list[tuple[str, Any]]]()

    def start(self) -> None:
        """Record the start of a step."""
        self._steps.append([("start", self._stamp())])

    def mark(self, part: str) -> None:
        """Record the end of a part. Call this when the work of the part has been queued."""
        self._steps[-1].append((part, self._stamp()))

    def _stamp(self) -> Any:
        if not self._on_gpu:
            return self._now()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def read(self) -> Timed:
        """Return the mean times over all steps. The work of all steps must be finished.

        The time of a step includes the time between steps: it is the time from the start of the
        first step to the end of the last step, divided by the number of steps.
        """
        parts = dict[str, float]()
        for stamps in self._steps:
            for (_, before), (part, after) in pairwise(stamps):
                parts[part] = parts.get(part, 0.0) + self._between(before, after)
        whole = self._between(self._steps[0][0][1], self._steps[-1][-1][1])
        count = len(self._steps)
        return Timed(whole / count, {part: seconds / count for part, seconds in parts.items()})

    def _between(self, before: Any, after: Any) -> float:
        seconds = before.elapsed_time(after) / 1000 if self._on_gpu else after - before
        return float(seconds)


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_step(
    take: Callable[..., object],
    step: ScheduleStep,
    batch: Batch,
    iterations: int,
    device: torch.device,
) -> Timed:
    """Repeat a training step, and return the mean time of the step and of its parts.

    Args:
        take: Function (step, batch, mark) that trains for one iteration, and calls `mark` with the
            name of each part when the work of the part has been queued.
        step: The iteration.
        batch: The mini-batch.
        iterations: Number of repetitions.
        device: The device of the model.
    """
    wait_for(device)
    clock = StepClock(device)
    for _ in range(iterations):
        clock.start()
        take(step, batch, mark=clock.mark)
    wait_for(device)
    return clock.read()


def timed_step(shape: Shape, clips: int, bn_group_size: int | None) -> ScheduleStep:
    """Return a step to time, with a low learning rate.

    Args:
        shape: Shape of the global mini-batch.
        clips: Number of clips of this process.
        bn_group_size: Number of clips of a BN group. None means the whole batch of the process.
    """
    return ScheduleStep(
        0, 0, shape, _RATE, None if bn_group_size is None else min(bn_group_size, clips), 0, 0.0
    )


def time_steps(
    stepper: Stepper, kinds: Sequence[tuple[Shape, int | None]]
) -> dict[tuple[Shape, int | None], float]:
    """Measure the seconds of a training step of each shape and BN group size.

    Run the steps in this process only, with the clips that one process has in a training. The
    shapes take turns. The weights of the model change.

    Args:
        stepper: The model and its optimizer.
        kinds: Pairs of shape and BN group size to measure.

    Returns:
        Maps each pair to the median seconds of a step.

    Raises:
        ValueError: A shape does not fit into the memory of the device, or cannot be compiled.
    """
    expect_graphs(2 * len(kinds))
    times: dict[tuple[Shape, int | None], list[float]] = defaultdict(list)
    turns = [kind for _ in range(_ROUNDS) for kind in kinds]
    for shape, bn_group_size in tqdm(turns, "step times", unit="shape", disable=None):
        clips = shape.batch // stepper.recipe.world_size
        step = timed_step(shape, clips, bn_group_size)
        batch = made_up_batch(stepper.recipe, clips, shape)
        with explain_failures(stepper, step):
            stepper(step, batch)
            timed = time_step(stepper, step, batch, _STEPS, stepper.device)
        times[shape, bn_group_size].append(timed.seconds)
    return {kind: median(seconds) for kind, seconds in times.items()}
