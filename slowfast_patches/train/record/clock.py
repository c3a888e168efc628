"""Measure a training's time by activity."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

_ACTIVITIES = ("preparing", "training", "loading", "evaluating", "saving", "testing")
"""What the time goes to; preparing are the dry steps at the start."""


class Clock:
    """Seconds spent on each activity over the whole life of a run, restarts included.

    Args:
        alone: whether this is a single process on the CPU. The time in which it trains but has no
            core is then counted as "waiting", too.
    """

    def __init__(self, alone: bool = False) -> None:
        self._seconds = dict.fromkeys((*_ACTIVITIES, "waiting"), 0.0)
        self._alone = alone
        self._activity: str | None = None
        self._since = (time.perf_counter(), time.thread_time())

    def load(self, seconds: Mapping[str, float]) -> None:
        """Continue from the seconds of the run that is resumed."""
        self._seconds |= seconds

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each activity until now."""
        self._switch(self._activity)
        return dict(self._seconds)

    @property
    def working(self) -> float:
        """Seconds spent on training and on waiting for data."""
        seconds = self.seconds
        return seconds["training"] + seconds["loading"]

    @contextmanager
    def time(self, activity: str) -> Iterator[None]:
        """Count the body's time as an activity's.

        Time that is counted as another activity's inside the body is left out.
        """
        before = self._switch(activity)
        try:
            yield
        finally:
            self._switch(before)

    @contextmanager
    def wait(self, device: torch.device) -> Iterator[None]:
        """Count the body's time as loading.

        The part in which a GPU still computes what was queued before is counted as training.
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
        """Start to count another activity's time, and return the previous activity."""
        before = self._activity
        now = (time.perf_counter(), time.thread_time())
        passed, computed = (end - start for end, start in zip(now, self._since, strict=True))
        self._activity = activity
        self._since = now
        if before is not None:
            self._seconds[before] += passed
        if before == "training" and self._alone:
            self._seconds["waiting"] += passed - computed
        return before


def _mark(device: torch.device) -> Any:
    """Record an event behind the work that is queued on a GPU. Return None on the CPU."""
    if device.type != "cuda":
        return None
    mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    mark.record()
    return mark


def _seconds_since(mark: Any, device: torch.device) -> float:
    """Return the seconds for which a GPU has been idle, if nothing was queued since."""
    if not mark.query():
        return 0.0
    now = _mark(device)
    now.synchronize()  # at once: nothing is before it
    return float(mark.elapsed_time(now)) / 1000
