"""Measure how many seconds a training spends on each activity, such as loading."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

_ACTIVITIES = ("preparing", "training", "loading", "evaluating", "saving", "testing")
"""Activities whose time is measured. "preparing" is the time of the dry steps."""


class Clock:
    """Measure the seconds spent on each activity of a run, summed over all restarts."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(_ACTIVITIES, 0.0)
        self._activity: str | None = None
        self._since = time.perf_counter()

    def load(self, seconds: Mapping[str, float]) -> None:
        """Set the seconds to the values in a checkpoint."""
        self._seconds |= seconds

    @property
    def seconds(self) -> dict[str, float]:
        """Map of each activity to the seconds spent so far."""
        self._switch(self._activity)
        return dict(self._seconds)

    @property
    def working(self) -> float:
        """Seconds of training, including the wait for data."""
        seconds = self.seconds
        return seconds["training"] + seconds["loading"]

    @contextmanager
    def time(self, activity: str) -> Iterator[None]:
        """Add the time of the body of the `with` statement to the total of `activity`.

        If the body measures another activity, that time is added only to the other activity.
        """
        before = self._switch(activity)
        try:
            yield
        finally:
            self._switch(before)

    @contextmanager
    def wait(self, device: torch.device) -> Iterator[None]:
        """Add the time of the body of the `with` statement to the total of "loading".

        On a GPU, the time in which the GPU still executes kernels that were queued before the body
        is counted as training instead.
        """
        queued = _mark(device)
        before = self.seconds["loading"]
        with self.time("loading"):
            yield
        if queued is not None:
            waited = self._seconds["loading"] - before
            idle = min(waited, _seconds_since(queued, device))
            self._seconds["loading"] -= waited - idle
            self._seconds["training"] += waited - idle

    def _switch(self, activity: str | None) -> str | None:
        """Start to measure another activity, and return the previous activity."""
        before = self._activity
        now = time.perf_counter()
        if before is not None:
            self._seconds[before] += now - self._since
        self._activity = activity
        self._since = now
        return before


def _mark(device: torch.device) -> Any:
    """Record a CUDA event after the queued kernels. Return the event, or None on the CPU."""
    if device.type != "cuda":
        return None
    mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    mark.record()
    return mark


def _seconds_since(mark: Any, device: torch.device) -> float:
    """Return how many seconds the GPU has been idle since the event `mark`.

    No kernel may have been queued after the event.
    """
    if not mark.query():
        return 0.0
    now = _mark(device)
    now.synchronize()  # returns at once, because no kernel is queued
    return float(mark.elapsed_time(now)) / 1000


def format_duration(seconds: float) -> str:
    """Format a duration with three digits in s, min or h: `42.5 s`, `7.02 min`, `1,240 h`."""
    unit, length = ("s", 1) if seconds < 120 else ("min", 60) if seconds < 7200 else ("h", 3600)
    value = seconds / length
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
