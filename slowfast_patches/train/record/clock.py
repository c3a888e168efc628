"""What the time of a training goes to, and how much of it is left."""

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
_LIMIT = 0.15
"""Share of a phase's time spent waiting for data above which loading is the limit."""
_LEAST_ITERATIONS, _LEAST_SECONDS = 10, 5.0
"""Shorter phases say nothing of what limits them."""


class Clock:
    """Seconds spent on each activity over the whole life of a run, restarts included."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(_ACTIVITIES, 0.0)
        self._activity: str | None = None
        self._since = time.perf_counter()

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
        queued, before = _mark(device), self.seconds["loading"]
        with self.time("loading"):
            yield
        waited = self._seconds["loading"] - before
        computing = waited - min(waited, _seconds_since(queued, device))
        self._seconds["loading"] -= computing
        self._seconds["training"] += computing

    def _go_over_to(self, activity: str | None) -> str | None:
        """Count the time until now; the activity until now."""
        before, since = self._activity, self._since
        self._activity, self._since = activity, time.perf_counter()
        if before is not None:
            self._seconds[before] += self._since - since
        return before


@dataclass(frozen=True)
class TimeSpent:
    """Iterations, their clips, and the seconds that each rank trained and loaded, (ranks, 2).

    While a rank waits for data the others wait for it, which counts as training: beside the main
    process's share, that of the rank that waits most is told.
    """

    iterations: int
    clips: int
    ranks: Tensor

    def __add__(self, other: TimeSpent) -> TimeSpent:
        iterations, clips = self.iterations + other.iterations, self.clips + other.clips
        return TimeSpent(iterations, clips, self.ranks + other.ranks)

    @property
    def seconds(self) -> float:
        """Of the main process."""
        return max(float(self.ranks[0].sum()), 1e-9)

    @property
    def share(self) -> float:
        """Of the main process's seconds: how many it waited."""
        return float(self.ranks[0, 1]) / self.seconds

    @property
    def worst(self) -> tuple[int, float] | None:
        """The rank that waited most, and its share; None where there is one rank."""
        shares = (self.ranks[:, 1] / self.ranks.sum(1).clamp(min=1e-9)).tolist()
        return max(enumerate(shares), key=lambda pair: pair[1]) if len(shares) > 1 else None

    @property
    def limit(self) -> str | None:
        """Who waited for data much of the time, and how much, if it was long enough to tell."""
        who, share = "it", self.share
        if self.worst is not None:
            who, share = f"rank {self.worst[0]}", self.worst[1]
        is_long = self.iterations >= _LEAST_ITERATIONS and self.seconds >= _LEAST_SECONDS
        return f"{who} waited {100 * share:.0f} %" if is_long and share > _LIMIT else None

    def waiting(self, words: str) -> str:
        """A share in words: "5 % `words`, rank 3 most with 7 %"."""
        text = f"{100 * self.share:.0f} % {words}"
        if self.worst is None:
            return text
        return f"{text}, rank {self.worst[0]} most with {100 * self.worst[1]:.0f} %"

    def to_json(self) -> dict[str, float]:
        """The shares, as a record has them."""
        shares = {"loading_share": round(self.share, 4)}
        if self.worst is not None:
            rank, share = self.worst
            shares |= {"worst_loading_share": round(share, 4), "worst_loading_rank": rank}
        return shares

    def __str__(self) -> str:
        training = max(float(self.ranks[0, 0]), 1e-9)
        return (
            f"{self.iterations} iterations took {format_duration(self.seconds)}, "
            f"{self.waiting('of it waiting for data')} (reading gave "
            f"{self.clips / self.seconds:.1f} clips/s, training could take "
            f"{self.clips / training:.1f})"
        )


class Forecast:
    """Seconds of each shape's iterations, measured, and what they say of the rest; shapes not met
    yet are taken to cost what their pixels say."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._seconds: dict[Shape, float] = defaultdict(float)
        self._iterations = Counter[Shape]()

    def observe(self, shape: Shape, seconds: float, iterations: int = 1) -> None:
        """Note the time that iterations of a shape took."""
        self._seconds[shape] += seconds
        self._iterations[shape] += iterations

    def per_iteration(self, shape: Shape) -> float:
        """Expected seconds of an iteration of a shape; 0 before anything was measured."""
        if count := self._iterations[shape]:
            return self._seconds[shape] / count
        pixels = sum(met.volume * n for met, n in self._iterations.items())
        return sum(self._seconds.values()) / pixels * shape.volume if pixels else 0.0

    def remaining(self, iteration: int) -> float:
        """Seconds from `iteration` to the end of the schedule, evaluation not included."""
        return sum(
            (phase.count(j) - phase.count(j, max(phase.start, iteration)))
            * self.per_iteration(shape)
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
    """Seconds for which a device has had nothing left to do, if nothing was queued since."""
    if mark is None:
        return math.inf
    if not mark.query():
        return 0.0
    now = _mark(device)
    now.synchronize()  # at once: nothing is before it
    return float(mark.elapsed_time(now)) / 1000
