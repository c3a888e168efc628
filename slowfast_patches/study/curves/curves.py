"""Accuracy against cost, of runs at several lengths: what each accuracy of the baseline costs each
arm, and where arms break even."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from multigrid import Cost
from slowfast_patches.study.arms import Arm
from slowfast_patches.study.curves.families import Family
from slowfast_patches.study.curves.reading import Curve, Reach, ratio_of, stretches
from slowfast_patches.study.report import Measured, as_json, measure
from slowfast_patches.study.runs import Result, Results, working_seconds
from slowfast_patches.utils.tables import Mean, mean_of

__all__ = ["AXES", "Curves", "Level", "Line", "Point", "StepTimed", "make_curves", "step_timed"]

AXES = ("seconds", "iterations", "flops")
"""The costs: of training with loading, in wall-clock time; forward and backward FLOPs."""


class StepTimed(NamedTuple):
    """Seconds of a run by its arm's name, as its iterations × step times, in place of those that it
    took; `source` are the files of these times."""

    seconds: Mapping[str, float]
    source: str


def step_timed(costs: Mapping[str, Cost], files: Sequence[Path]) -> StepTimed | None:
    """The times of arms whose costs were worked out by files of step times; None where no file is
    given, or an arm has no times."""
    seconds = {name: cost.seconds for name, cost in costs.items() if cost.seconds is not None}
    known = bool(files) and len(seconds) == len(costs)
    return StepTimed(seconds, ", ".join(map(str, files))) if known else None


class Point(NamedTuple):
    """A length with finished runs: what they took on some axis, and what they reached."""

    length: float
    cost: Mean
    accuracy: Mean


class Level(NamedTuple):
    """An accuracy, in per cent, and which of the baseline's it is: "at 0.5×"."""

    accuracy: float
    what: str


@dataclass(frozen=True)
class Line:
    """A recipe's trainings of several lengths: what was measured, by length, the shortest first."""

    label: str
    points: Mapping[float, Measured]


@dataclass(frozen=True)
class Curves:
    """The lines of some recipes, the baseline's first, judged by `metric` of their final results;
    `timed` has their seconds where these are not to be those that the runs took."""

    lines: tuple[Line, ...]
    metric: str
    timed: StepTimed | None = None

    def costs(self, axis: str, measured: Measured) -> dict[int, float]:
        """What each finished run took, by its seed."""
        value = self._cost(axis, measured.arm)
        return {seed: value(run) for seed, run in measured.runs.items()}

    def _cost(self, axis: str, arm: Arm) -> Callable[[Result], float]:
        if axis != "seconds":
            return lambda run: float(run[axis])
        if self.timed is None:
            return working_seconds
        seconds = self.timed.seconds[arm.name]
        return lambda _: seconds

    def points(self, axis: str, line: Line) -> list[Point]:
        """Those of a line, by length."""
        found = list[Point]()
        for length, measured in line.points.items():
            cost = mean_of(self.costs(axis, measured).values())
            accuracy = measured.metric(self.metric)
            if cost and accuracy:
                found.append(Point(length, cost, accuracy))
        return found

    def curve(self, axis: str, line: Line) -> Curve | None:
        """The line over a cost; None before its first run is finished."""
        points = sorted(self.points(axis, line), key=lambda point: point.cost.mean)
        if not points:
            return None
        spreads = [point.accuracy.std for point in points]
        return Curve(
            costs=[point.cost.mean for point in points],
            accuracies=[point.accuracy.mean for point in points],
            spreads=[math.nan if spread is None else spread for spread in spreads],
            lengths=[point.length for point in points],
        )

    def levels(self) -> list[Level]:
        """The accuracies that the baseline reaches at its lengths, the best first, and 1 point
        below the best."""
        curve = self.curve("iterations", self.lines[0])
        if curve is None:
            return []
        found = dict[float, str]()
        for length, accuracy in zip(curve.lengths, curve.envelope, strict=True):
            found.setdefault(accuracy, f"at {length:g}×")
        if (near := max(found) - 1) > 0:
            found.setdefault(near, "1 point below its best")
        return [Level(accuracy, found[accuracy]) for accuracy in sorted(found, reverse=True)]

    def reaches(self, axis: str, accuracy: float) -> list[Reach | None]:
        """What an accuracy costs each line; None where it is not reached."""
        curves = [self.curve(axis, line) for line in self.lines]
        return [curve.reach(accuracy) if curve else None for curve in curves]

    def to_json(self) -> dict[str, Any]:
        """As plain data; what is missing, or was not reached, is null."""
        return {
            "seconds": f"step times of {self.timed.source}" if self.timed else "wall-clock",
            "curves": [
                {"label": line.label, "points": list(self._points_json(line))}
                for line in self.lines
            ],
            "levels": [
                level._asdict() | {axis: self._level_json(axis, level) for axis in AXES}
                for level in self.levels()
            ],
            "stretches": {
                line.label: {axis: self._stretches_json(axis, line) for axis in AXES}
                for line in self.lines[1:]
            },
        }

    def _points_json(self, line: Line) -> Iterator[dict[str, Any]]:
        for length, measured in line.points.items():
            costs = {axis: mean_of(self.costs(axis, measured).values()) for axis in AXES}
            means = costs | {self.metric: measured.metric(self.metric)}
            values = {name: as_json(mean) for name, mean in means.items()}
            seeds = list(measured.runs)
            yield {"length": length, "name": measured.arm.name, "seeds": seeds, **values}

    def _level_json(self, axis: str, level: Level) -> dict[str, Any]:
        reaches = self.reaches(axis, level.accuracy)
        found = dict[str, Any]()
        for line, reach in zip(self.lines, reaches, strict=True):
            ratio = ratio_of(reaches[0], reach)
            found[line.label] = reach and {
                **reach._asdict(),
                "baseline_ratio": ratio and ratio._asdict(),
            }
        return found

    def _stretches_json(self, axis: str, line: Line) -> list[dict[str, Any]]:
        """`above` is a label; `start_length`, `stop_length` are the baseline's at these costs."""
        first, second = self.curve(axis, self.lines[0]), self.curve(axis, line)
        if first is None or second is None:
            return []
        names = {1: line.label, -1: self.lines[0].label, 0: None}
        return [
            {
                **asdict(found),
                "above": names[found.above],
                "spread": None if math.isnan(found.spread) else found.spread,
                "start_length": first.length_at(found.start),
                "stop_length": first.length_at(found.stop),
            }
            for found in stretches(first, second)
        ]


def make_curves(
    families: Sequence[Family],
    seeds: Sequence[int],
    results: Results,
    metric: str,
    timed: StepTimed | None = None,
) -> Curves:
    """The curves of the results there are."""
    lines = (
        Line(f.label, {at: measure(arm, arm, seeds, results) for at, arm in f.arms.items()})
        for f in families
    )
    return Curves(tuple(lines), metric, timed)
