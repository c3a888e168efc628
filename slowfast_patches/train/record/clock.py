"""What the time of a training goes to."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["Clock"]

_ACTIVITIES = ("preparing", "training", "loading", "evaluating", "saving")
"""What the time goes to; preparing are the dry steps at the start."""


class Clock:
    """Seconds spent on each activity over the whole life of a run, restarts included."""

    def __init__(self, seconds: Mapping[str, float] | None = None) -> None:
        self.seconds = dict.fromkeys(_ACTIVITIES, 0.0) | dict(seconds or {})
        self._going_on: tuple[str, float] | None = None

    @contextmanager
    def time(self, activity: str) -> Iterator[None]:
        """Count the body's time as an activity's."""
        start = time.perf_counter()
        self._going_on = activity, start
        try:
            yield
        finally:
            self._going_on = None
            self.seconds[activity] += time.perf_counter() - start

    @contextmanager
    def wait(self, device: torch.device) -> Iterator[None]:
        """Count the body's time as loading, as far as the device had nothing left to compute.

        Work is queued on a GPU: while the next mini-batch is awaited, it may still be computing,
        and that is training.
        """
        queued, start = _mark(device), time.perf_counter()
        yield
        waited = time.perf_counter() - start
        idle = min(waited, _seconds_since(queued, device))
        self.seconds["loading"] += idle
        self.seconds["training"] += waited - idle

    @property
    def working(self) -> float:
        """Seconds of training and of waiting for data."""
        return self.seconds["training"] + self.seconds["loading"]

    def until_now(self) -> dict[str, float]:
        """The seconds of each activity, with those of the one that `time` is counting."""
        seconds = dict(self.seconds)
        if self._going_on is not None:
            activity, start = self._going_on
            seconds[activity] += time.perf_counter() - start
        return seconds


def _mark(device: torch.device) -> Any:
    """The end of what is queued on a GPU by now; None on the CPU, where nothing is queued."""
    if device.type != "cuda":
        return None
    mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    mark.record()
    return mark


def _seconds_since(mark: Any, device: torch.device) -> float:
    """Seconds for which a device has had nothing left to do, if nothing was queued since."""
    if mark is None:
        return math.inf
    if not mark.query():
        return 0.0
    now = _mark(device)
    now.synchronize()  # at once: nothing is before it
    return float(mark.elapsed_time(now)) / 1000
