"""The time a training still needs, as its schedule predicts it."""

from __future__ import annotations

from collections import defaultdict

from multigrid import Schedule, Shape

__all__ = ["Forecast"]


class Forecast:
    """Seconds of each shape's iterations, measured, and what they say of the rest.

    Shapes not met yet are taken to cost what their pixels say; the shape at hand is never
    extrapolated to the others.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._seconds: dict[Shape, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def observe(self, shape: Shape, seconds: float) -> None:
        """Note the time that one iteration of a shape took."""
        total = self._seconds[shape]
        total[0] += seconds
        total[1] += 1

    def per_iteration(self, shape: Shape) -> float:
        """Expected seconds of an iteration of a shape; 0 before anything was measured."""
        if shape in self._seconds:
            seconds, count = self._seconds[shape]
            return seconds / count
        seconds = sum(total for total, _ in self._seconds.values())
        pixels = sum(shape.volume * n for shape, (_, n) in self._seconds.items())
        return seconds / pixels * shape.volume if pixels else 0.0

    def remaining(self, iteration: int) -> float:
        """Seconds from `iteration` to the end of the schedule, evaluation not included."""
        total = 0.0
        for phase in self._schedule.phases:
            if phase.stop > iteration:
                done = max(phase.start, iteration)
                for j, shape in enumerate(phase.shapes):
                    left = phase.count(j) - phase.count(j, done)
                    total += left * self.per_iteration(shape)
        return total
