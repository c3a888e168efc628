"""Seconds of a training by activity, and a forecast of those left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from multigrid import Schedule, Shape

_ACTIVITIES = ("preparing", "training", "loading", "evaluating", "saving", "testing")
"""What the time goes to; preparing are the dry steps at the start."""


class Clock:
    """Seconds spent on each activity over the whole life of a run, restarts included.

    `alone` is the training of a single process on the CPU, of whose seconds those in which this
    thread had no core are "waiting", too.
    """

    def __init__(self, alone: bool = False) -> None:
        self._seconds = dict.fromkeys((*_ACTIVITIES, "waiting"), 0.0)
        self._alone = alone
        self._activity: str | None = None
        self._since = (time.perf_counter(), time.thread_time())

    def load(self, seconds: Mapping[str, float]) -> None:
        """Go on from those of the run that is continued."""
        self._seconds |= seconds

    @property
    def seconds(self) -> dict[str, float]:
        """Of each activity until now."""
        self._switch(self._activity)
        return dict(self._seconds)

    @property
    def working(self) -> float:
        """Seconds of training and of waiting for data."""
        seconds = self.seconds
        return seconds["training"] + seconds["loading"]

    @contextmanager
    def time(self, activity: str) -> Iterator[None]:
        """Count the body's time as an activity's, but for what is counted as another's in it."""
        before = self._switch(activity)
        try:
            yield
        finally:
            self._switch(before)

    @contextmanager
    def wait(self, device: torch.device) -> Iterator[None]:
        """Count the body's time as loading, but for the part in which a GPU still computed what was
        queued, which is training."""
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
        """Begin to count another activity's time; returns the activity until now."""
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


class Forecast:
    """Seconds of each shape's iterations, measured, and what they say of the rest; shapes not met
    yet are taken to cost what their pixels say."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._seconds = Counter[Shape]()
        self._iterations = Counter[Shape]()

    def observe(self, shape: Shape, seconds: float) -> None:
        """Note the time that an iteration of a shape took."""
        self._seconds[shape] += seconds  # type: ignore[assignment]  # a Counter takes any number
        self._iterations[shape] += 1

    def remaining(self, iteration: int) -> float:
        """Seconds from `iteration` to the end of the schedule, evaluation not included."""
        pixels = sum(shape.volume * count for shape, count in self._iterations.items())
        per_pixel = self._seconds.total() / pixels
        return sum(
            (phase.count(j) - phase.count(j, max(phase.start, iteration)))
            * (self._seconds[shape] / (self._iterations[shape] or 1) or per_pixel * shape.volume)
            for phase in self._schedule.phases
            if phase.stop > iteration
            for j, shape in enumerate(phase.shapes)
        )


def _mark(device: torch.device) -> Any:
    """The end of what is queued on a GPU by now; None on the CPU, where nothing is queued."""
    if device.type != "cuda":
        return None
    mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    mark.record()
    return mark


def _seconds_since(mark: Any, device: torch.device) -> float:
    """Seconds for which a GPU has had nothing left to do, if nothing was queued since."""
    if not mark.query():
        return 0.0
    now = _mark(device)
    now.synchronize()  # at once: nothing is before it
    return float(mark.elapsed_time(now)) / 1000
