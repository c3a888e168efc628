"""Accuracy as a function of the training cost, for recipes trained for several lengths.

A curve gives, for each cost, the best accuracy of all trainings that cost no more. Between two
neighbouring lengths, accuracy is interpolated linearly in the logarithm of the cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from slowfast_patches.experiments.report import Table
from slowfast_patches.utils.clock import format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curves = Mapping[str, pd.DataFrame]
"""Maps the label of each recipe to its curve, the baseline first."""
_STYLE: dict[str, Any] = {"marker": "o", "lw": 2, "capsize": 4}
_NOTE: dict[str, Any] = {"fontsize": 8, "va": "top"}


def curves_of(runs: pd.DataFrame, cost: str, metric: str) -> dict[str, pd.DataFrame]:
    """Return the curve of each recipe that has finished runs.

    Args:
        runs: Table returned by `Experiment.runs`.
        cost: Column with the cost of each run, such as "clock".
        metric: Name of the metric, such as "top1".

    Returns:
        Maps the label of each recipe to a table with one row per length, sorted by cost. The
        columns are length, cost, accuracy and std, which are the mean and the standard deviation
        over seeds, and best, which is the highest accuracy up to the cost of the row.
    """
    columns = {"cost": (cost, "mean"), "accuracy": (metric, "mean"), "std": (metric, "std")}
    curves = dict[str, pd.DataFrame]()
    for label, own in runs.dropna(subset=[metric]).groupby("label", sort=False):
        points = own.groupby("length", as_index=False).agg(**columns)
        points = points.sort_values("cost", ignore_index=True)
        curves[str(label)] = points.assign(best=points["accuracy"].cummax())
    return curves


def reach(curve: pd.DataFrame, accuracy: float) -> tuple[float, bool]:
    """Return the cost at which a curve reaches an accuracy.

    Returns:
        A tuple (cost, is_upper_bound). The cost is infinite if no training reaches the accuracy. It
        is only an upper bound if even the shortest training exceeds the accuracy.
    """
    best = curve["best"].to_numpy()
    last = int(np.searchsorted(best, accuracy))
    if last == len(best):
        return math.inf, False
    until = curve[: last + 1]
    cost = np.exp(np.interp(accuracy, until["best"], np.log(until["cost"])))
    return float(cost), bool(best[0] > accuracy)


def levels_table(curves: Curves, title: str) -> Table:
    """Return a table of the training times at which each recipe reaches several accuracies.

    The accuracies are the results of the first recipe at each length, and the best result of the
    first recipe minus 1 percentage point.

    Args:
        curves: Curves against seconds.
        title: Title of the metric.
    """
    baseline, *others = curves
    first = curves[baseline]
    levels = {first["best"].max() - 1: "1 point below its best"}
    levels |= {row.best: f"at {row.length:g}×" for row in first[::-1].itertuples()}
    headers = [baseline, f"{title}, %", "time"]
    headers += [text for label in others for text in (f"{label},\ntime", "speed-up")]
    rows = list[list[str]]()
    for accuracy, name in sorted(levels.items(), reverse=True):
        before, is_bound = reach(first, accuracy)
        cells = [name, f"{accuracy:.1f}", _format_reach(before, is_bound)]
        for label in others:
            after, at_least = reach(curves[label], accuracy)
            # The ratio of two upper bounds is unknown.
            known = after < math.inf and not is_bound
            ratio = f"{'≥ ' * at_least}{before / after:.2f}×" if known else "–"
            cells += [_format_reach(after, at_least), ratio]
        rows.append(cells)
    return Table(headers, rows)


def _format_reach(cost: float, is_upper_bound: bool) -> str:
    return f"{'≤ ' * is_upper_bound}{format_duration(cost)}" if cost < math.inf else "not reached"


def leads(first: pd.DataFrame, second: pd.DataFrame) -> list[tuple[float, float]]:
    """Return by how much one curve is above another.

    Returns:
        Tuples (cost, lead), sorted by cost, where `lead` is the accuracy of the second curve minus
        the accuracy of the first, in percentage points. The costs are those of both curves, as far
        as the curves overlap, and those at which both curves are equal.
    """
    own = [np.log(curve["cost"]) for curve in (first, second)]
    costs = np.union1d(*own)
    costs = costs[(costs >= max(map(min, own))) & (costs <= min(map(max, own)))]
    before, after = (
        np.interp(costs, own[n], curve["best"]) for n, curve in enumerate((first, second))
    )
    points = list(zip(costs, after - before, strict=True))
    for (start, lead), (stop, end) in pairwise(points.copy()):
        if lead * end < 0:
            points.append((start + (stop - start) * lead / (lead - end), 0.0))
    return [(float(np.exp(cost)), float(lead)) for cost, lead in sorted(points)]


def leads_table(curves: Curves) -> Table:
    """Return a table of how far each recipe is ahead of the first one at each training time."""
    baseline, *others = curves
    rows = [
        [label, format_duration(cost), f"{lead:+.1f}" if lead else "equal"]
        for label in others
        for cost, lead in leads(curves[baseline], curves[label])
    ]
    return Table(["config", "training time", f"points above\n{baseline}"], rows)


def draw_curves(axes: Axes, curves: Curves, colours: Mapping[str, str], runs: pd.DataFrame) -> None:
    """Draw curves with error bars.

    With several lengths, costs are drawn on a logarithmic axis, and lengths next to the points.

    Args:
        axes: Axes to draw in.
        curves: The curves.
        colours: Maps the label of each curve to its colour.
        runs: Table of runs, for the numbers of seeds in the legend.
    """
    seeds = runs.groupby("label")["seed"].nunique()
    several = any(len(curve) > 1 for curve in curves.values())
    for label, curve in curves.items():
        error = curve["std"].fillna(0.0)
        style = _STYLE | {"color": colours[label], "label": f"{label} (n = {seeds[label]})"}
        axes.errorbar(curve["cost"], curve["accuracy"], error, **style)
        for point in curve.itertuples() if several else []:
            axes.annotate(f" {point.length:g}×", (point.cost, point.accuracy), **_NOTE)
    axes.set_xscale("log" if several else "linear")
