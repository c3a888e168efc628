"""The time of steps and of their parts, on the CPU and on a GPU, without stopping either."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch

__all__ = ["Mark", "StepClock", "Timed"]

Mark = Callable[[str], None]
"""Is told the name of a part of a step when its work has been given."""

Stamp = float | torch.cuda.Event


class Timed(NamedTuple):
    """Seconds of a step and of each of its parts, in their order: means over some steps."""

    seconds: float
    parts: dict[str, float]


class StepClock:
    """Notes when a step begins and when the work of each of its parts is done.

    On a GPU the notes are events in the queue of the current stream: what is timed is the GPU's
    work, with the gaps in which it waits for the CPU. Nothing waits until `read`.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._steps = list[list[tuple[str, Stamp]]]()

    def start(self) -> None:
        """A step begins."""
        self._steps.append([("start", self._stamp())])

    def mark(self, part: str) -> None:
        """The work of a part has been given."""
        self._steps[-1].append((part, self._stamp()))

    def _stamp(self) -> Stamp:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def read(self) -> Timed:
        """The means over the steps; all their work must be done.

        The whole is from the first step's start to the last one's end, so it has what lies between
        the steps, too.
        """
        (_, first), *_ = self._steps[0]
        *_, (_, last) = self._steps[-1]
        parts = dict[str, float]()
        for stamps in self._steps:
            for (_, before), (part, after) in pairwise(stamps):
                parts[part] = parts.get(part, 0.0) + _between(before, after)
        count = len(self._steps)
        means = {part: seconds / count for part, seconds in parts.items()}
        return Timed(_between(first, last) / count, means)


def _between(before: Stamp, after: Stamp) -> float:
    """Seconds from one stamp to another."""
    if isinstance(before, torch.cuda.Event) and isinstance(after, torch.cuda.Event):
        return before.elapsed_time(after) / 1000  # of milliseconds
    assert isinstance(before, float)
    assert isinstance(after, float)
    return after - before
