"""Curves of accuracy over a cost, read between their points: what an accuracy costs, and which of
two curves is above the other.

A point is a training of some length. Both are read on the curve's monotone upper envelope (at a
cost, the best of the trainings that cost no more), linear in the logarithm of the cost between
neighbouring points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Curve", "Ratio", "Reach", "Stretch", "ratio_of", "stretches"]

Floats = NDArray[np.float64]
Numbers = Floats | Sequence[float]


class Reach(NamedTuple):
    """The cost of an accuracy; `at_most` where already the shortest training is above it."""

    cost: float
    at_most: bool


class Ratio(NamedTuple):
    """Of two costs; `bound` is "=", or "≥" or "≤" where one of them is known as a bound."""

    value: float
    bound: str


@dataclass(frozen=True)
class Curve:
    """Trainings of several lengths, as rising costs with their accuracies.

    accuracies: in per cent, means over seeds.
    spreads: their sample standard deviations; nan of a single seed.
    lengths: as multiples of the recipe's own.
    """

    costs: Sequence[float]
    accuracies: Sequence[float]
    spreads: Sequence[float]
    lengths: Sequence[float]

    @cached_property
    def _best(self) -> list[int]:
        """For each point, the best of those up to it."""
        points = range(len(self.accuracies))
        return [max(points[: last + 1], key=self.accuracies.__getitem__) for last in points]

    @property
    def envelope(self) -> list[float]:
        """The best accuracy up to each cost."""
        return [self.accuracies[best] for best in self._best]

    def reach(self, accuracy: float) -> Reach | None:
        """What an accuracy costs; None where no training has it."""
        best = self.envelope
        first = next((point for point, found in enumerate(best) if found >= accuracy), None)
        if first is None:
            return None
        if first == 0:
            return Reach(self.costs[0], at_most=best[0] > accuracy)
        share = (accuracy - best[first - 1]) / (best[first] - best[first - 1])
        before, after = self.costs[first - 1 : first + 1]
        return Reach(before * (after / before) ** share, at_most=False)

    def at(self, costs: Floats) -> tuple[Floats, Floats]:
        """The envelope's accuracies and their spreads at some costs."""
        spreads = [self.spreads[best] for best in self._best]
        return self._between(costs, self.envelope), self._between(costs, spreads)

    def length_at(self, cost: float) -> float:
        """How long a training of this cost is, as a multiple of the recipe's own length."""
        return float(np.exp(self._between(cost, np.log(self.lengths))))

    def _between(self, costs: Floats | float, values: Numbers) -> Floats:
        found: Floats = np.interp(np.log(costs), np.log(self.costs), values)
        return found


def ratio_of(baseline: Reach | None, ours: Reach | None) -> Ratio | None:
    """The baseline's cost as a multiple of ours; None where that is not known."""
    if baseline is None or ours is None or (baseline.at_most and ours.at_most):
        return None
    bound = "≥" if ours.at_most else "≤" if baseline.at_most else "="
    return Ratio(baseline.cost / ours.cost, bound)


@dataclass(frozen=True)
class Stretch:
    """A range of costs in which one of two curves is above the other.

    above: 1 where it is the second, -1 the first, 0 where they are equal.
    least, most: points of accuracy between them, at the points of either curve in the range.
    spread: the seeds' at the largest of these, of the difference: the root of the sum of both
        curves' squared standard deviations; nan of single seeds.
    beyond: the share of these differences that are larger than their spread; None of single seeds.
    """

    start: float
    stop: float
    above: int
    least: float
    most: float
    spread: float
    beyond: float | None


class _Piece(NamedTuple):
    """A range between two neighbouring knots, or a part of it on one side of a crossing."""

    start: float
    stop: float
    above: int


def stretches(first: Curve, second: Curve) -> list[Stretch]:
    """Which of two curves is above, over the range of costs that both cover; they break even where
    one stretch ends and the next begins. Empty where there is no such range."""
    low, high = max(first.costs[0], second.costs[0]), min(first.costs[-1], second.costs[-1])
    if low >= high:
        return []
    between = {cost for cost in (*first.costs, *second.costs) if low < cost < high}
    knots = np.array(sorted({low, high} | between))
    (below, spread), (above, other) = first.at(knots), second.at(knots)
    leads, spreads = above - below, np.hypot(spread, other)
    found = list[Stretch]()
    for _, group in groupby(_pieces(knots, leads), lambda piece: piece.above):
        pieces = list(group)
        found.append(_stretch(pieces[0], pieces[-1], knots, leads, spreads))
    return found


def _pieces(knots: Floats, leads: Floats) -> Iterator[_Piece]:
    for (start, stop), (before, after) in zip(pairwise(knots), pairwise(leads), strict=True):
        signs = int(np.sign(before)), int(np.sign(after))
        if signs[0] * signs[1] < 0:
            crossing = start * (stop / start) ** (before / (before - after))
            yield _Piece(start, crossing, signs[0])
            yield _Piece(crossing, stop, signs[1])
        else:
            yield _Piece(start, stop, signs[0] or signs[1])


def _stretch(begin: _Piece, end: _Piece, knots: Floats, leads: Floats, spreads: Floats) -> Stretch:
    here = (knots >= begin.start) & (knots <= end.stop) & (np.sign(leads) == begin.above)
    sizes, own = np.abs(leads[here]), spreads[here]
    largest = int(np.argmax(sizes))
    known = not np.isnan(own).any()
    return Stretch(
        start=float(begin.start),
        stop=float(end.stop),
        above=begin.above,
        least=float(sizes.min()),
        most=float(sizes[largest]),
        spread=float(own[largest]),
        beyond=float(np.mean(sizes > own)) if known else None,
    )
