"""Seconds of a training by activity, and a forecast of those left."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from multigrid import Schedule, Shape
from slowfast_patches.utils.tables import format_duration

__all__ = ["Clock", "Forecast", "TimeSpent"]

_ACTIVITIES = ("preparing", "training", "loading", "evaluating", "saving")
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
        self._since = time.perf_counter()
        self._cpu = time.thread_time()
        self._lap = (0.0, 0.0)

    def load(self, seconds: Mapping[str, float]) -> None:
        """Go on from those of the run that is continued."""
        self._seconds |= seconds

    @property
    def seconds(self) -> dict[str, float]:
        """Of each activity until now."""
        self._go_over_to(self._activity)
        return dict(self._seconds)

    @property
    def working(self) -> float:
        """Seconds of training and of waiting for data."""
        seconds = self.seconds
        return seconds["training"] + seconds["loading"]

    def lap(self) -> tuple[float, float]:
        """Seconds of training and of waiting for data since this was last asked."""
        seconds = self.seconds
        before = self._lap
        self._lap = seconds["training"], seconds["loading"]
        return self._lap[0] - before[0], self._lap[1] - before[1]

    @contextmanager
    def time(self, activity: str) -> Iterator[None]:
        """Count the body's time as an activity's, but for what is counted as another's in it."""
        before = self._go_over_to(activity)
        try:
            yield
        finally:
            self._go_over_to(before)

    @contextmanager
    def wait(self, device: torch.device) -> Iterator[None]:
        """Count the body's time as loading, but for the part in which a GPU still computed what was
        queued, which is training."""
        queued = _mark(device)
        before = self.seconds["loading"]
        with self.time("loading"):
            yield
        waited = self._seconds["loading"] - before
        computing = waited - min(waited, _seconds_since(queued, device))
        self._seconds["loading"] -= computing
        self._seconds["training"] += computing

    def _go_over_to(self, activity: str | None) -> str | None:
        """Count the time until now; the activity until now."""
        before = self._activity
        since = self._since
        cpu = self._cpu
        self._activity = activity
        self._since = time.perf_counter()
        self._cpu = time.thread_time()
        if before is not None:
            self._seconds[before] += self._since - since
        if before == "training" and self._alone:
            self._seconds["waiting"] += (self._since - since) - (self._cpu - cpu)
        return before


@dataclass(frozen=True)
class TimeSpent:
    """Iterations, their clips, and the seconds that each rank trained and loaded, (ranks, 2).

    While a rank waits for data the others wait for it, which counts as training: the share is that
    of the rank that waits most.
    """

    iterations: int
    clips: int
    ranks: Tensor

    def __add__(self, other: TimeSpent) -> TimeSpent:
        iterations = self.iterations + other.iterations
        clips = self.clips + other.clips
        return TimeSpent(iterations, clips, self.ranks + other.ranks)

    @property
    def seconds(self) -> float:
        """Of the main process."""
        return max(float(self.ranks[0].sum()), 1e-9)

    @property
    def _shares(self) -> Tensor:
        return self.ranks[:, 1] / self.ranks.sum(1).clamp(min=1e-9)

    @property
    def loading_share(self) -> float:
        """The part of its seconds that the rank which waits most for data has waited."""
        return float(self._shares.max())

    @property
    def waiting(self) -> str:
        """The share in words, with the rank where there are several."""
        where = f" on rank {int(self._shares.argmax())}" if len(self.ranks) > 1 else ""
        return f"{100 * self.loading_share:.0f} % waiting for data{where}"

    def __str__(self) -> str:
        reading = self.clips / self.seconds
        return (
            f"{self.iterations} iterations took {format_duration(self.seconds)}, {self.waiting} "
            f"(reading gave {reading:.1f} clips/s, training could take "
            f"{reading / max(1 - self.loading_share, 1e-9):.1f})"
        )


class Forecast:
    """Seconds of each shape's iterations, measured, and what they say of the rest; shapes not met
    yet are taken to cost what their pixels say."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._seconds: dict[Shape, float] = defaultdict(float)
        self._iterations = Counter[Shape]()

    def observe(self, shape: Shape, seconds: float) -> None:
        """Note the time that an iteration of a shape took."""
        self._seconds[shape] += seconds
        self._iterations[shape] += 1

    def remaining(self, iteration: int) -> float:
        """Seconds from `iteration` to the end of the schedule, evaluation not included."""
        return sum(
            (phase.count(j) - phase.count(j, max(phase.start, iteration)))
            * self._per_iteration(shape)
            for phase in self._schedule.phases
            if phase.stop > iteration
            for j, shape in enumerate(phase.shapes)
        )

    def _per_iteration(self, shape: Shape) -> float:
        if count := self._iterations[shape]:
            return self._seconds[shape] / count
        pixels = sum(met.volume * n for met, n in self._iterations.items())
        return sum(self._seconds.values()) / pixels * shape.volume


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
