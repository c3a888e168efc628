"""Accuracy as a function of the training cost, for recipes trained for several lengths.

A curve gives, for each cost, the best accuracy of all trainings that cost no more. Between two
neighbouring lengths, accuracy is interpolated linearly in the logarithm of the cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from slowfast_patches.study.report import Table
from slowfast_patches.utils.pictures import COLOURS
from slowfast_patches.utils.tables import format_duration, format_flops

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COSTS = {"seconds": "clock", "iterations": "iterations", "flops": "flops"}
"""Maps each kind of cost to its column in the table of `Study.runs`."""

Curves = Mapping[str, pd.DataFrame]
"""Maps the label of each recipe to its curve, the baseline first."""


def make_curve(lengths: Any, costs: Any, accuracies: Any, stds: Any) -> pd.DataFrame:
    """Build a curve with one point for each length.

    Args:
        lengths: Length of each training as a multiple of the recipe's length.
        costs: Cost of each training.
        accuracies: Accuracy of each training in per cent, averaged over seeds.
        stds: Standard deviation of each accuracy over seeds.

    Returns:
        A table with one row per length, sorted by cost. The columns are length, cost, accuracy, std
        and best, which is the highest accuracy up to the cost of the row.
    """
    columns = {"length": lengths, "cost": costs, "accuracy": accuracies, "std": stds}
    curve = pd.DataFrame(columns, dtype=float).sort_values("cost", ignore_index=True)
    return curve.assign(best=curve["accuracy"].cummax())


def curves_of(runs: pd.DataFrame, kind: str, metric: str) -> dict[str, pd.DataFrame]:
    """Return the curve of each recipe that has finished runs.

    Args:
        runs: Table returned by `Study.runs`.
        kind: Kind of cost, a key of `COSTS`.
        metric: Name of the metric, such as "top1".

    Returns:
        Maps the label of each recipe to the curve built by `make_curve`.
    """
    curves = dict[str, pd.DataFrame]()
    for label, own in runs.dropna(subset=[metric]).groupby("label", sort=False):
        lengths = own.groupby("length")
        accuracy = lengths[metric]
        cost = lengths[COSTS[kind]].mean()
        curves[str(label)] = make_curve(
            cost.index.to_numpy(), cost.array, accuracy.mean().array, accuracy.std().array
        )
    return curves


def reach(curve: pd.DataFrame, accuracy: float) -> tuple[float, bool] | None:
    """Return the cost at which a curve reaches an accuracy.

    Returns:
        A tuple (cost, is_upper_bound), or None if no training reaches the accuracy. The cost is
        only an upper bound if even the shortest training exceeds the accuracy.
    """
    above = curve["best"] >= accuracy
    if not above.any():
        return None
    first = int(above.argmax())
    if first == 0:
        return float(curve["cost"][0]), bool(curve["best"][0] > accuracy)
    between = curve[first - 1 : first + 1]
    return float(np.exp(np.interp(accuracy, between["best"], np.log(between["cost"])))), False


def levels_of(runs: pd.DataFrame, metric: str) -> list[dict[str, Any]]:
    """Return the costs at which each recipe reaches several accuracies.

    The accuracies are the results of the first recipe at each length, and the best result of the
    first recipe minus 1 percentage point.

    Returns:
        One dictionary per accuracy, the highest first. The key "accuracy" has the accuracy in per
        cent, and "what" a description such as "at 0.5×". Each key of `COSTS` maps the label of each
        recipe to the result of `reach`.
    """
    curves = {kind: curves_of(runs, kind, metric) for kind in COSTS}
    baseline = next(iter(curves["seconds"].values()))
    best = baseline["best"].max()
    names = {best - 1: "1 point below its best"}
    names |= {row.best: f"at {row.length:g}×" for row in baseline[::-1].itertuples()}
    return [
        {"accuracy": accuracy, "what": names[accuracy]}
        | {k: {label: reach(c, accuracy) for label, c in of.items()} for k, of in curves.items()}
        for accuracy in sorted(names, reverse=True)
    ]


def levels_table(levels: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Return a table of the training times at which each recipe reaches each level.

    Args:
        levels: Result of `levels_of`.
        title: Title of the metric.
    """
    baseline, *others = levels[0]["seconds"]
    headers = [baseline, f"{title}, %", "time"]
    headers += [text for label in others for text in (f"{label},\ntime", "speed-up")]
    rows = list[list[str]]()
    for level in levels:
        first, *rest = level["seconds"].values()
        cells = [level["what"], f"{level['accuracy']:.1f}", _format_reach(first)]
        for ours in rest:
            # Two upper bounds have no known ratio.
            known = first and ours and not first[1]
            ratio = f"{'≥ ' * ours[1]}{first[0] / ours[0]:.2f}×" if known else "–"
            cells += [_format_reach(ours), ratio]
        rows.append(cells)
    return Table(headers, rows)


def _format_reach(found: tuple[float, bool] | None) -> str:
    return f"{'≤ ' * found[1]}{format_duration(found[0])}" if found else "not reached"


def leads(first: pd.DataFrame, second: pd.DataFrame) -> list[tuple[float, float]]:
    """Return by how much one curve is above another.

    Returns:
        Tuples (cost, lead), sorted by cost, where `lead` is the accuracy of the second curve minus
        the accuracy of the first, in percentage points. The costs are those of both curves, as far
        as the curves overlap, and those at which both curves are equal.
    """
    low = max(first["cost"].min(), second["cost"].min())
    high = min(first["cost"].max(), second["cost"].max())
    costs = np.unique([*first["cost"], *second["cost"]])
    costs = costs[(low <= costs) & (costs <= high)]
    before, after = (
        np.interp(np.log(costs), np.log(curve["cost"]), curve["best"]) for curve in (first, second)
    )
    points = list(zip(costs.tolist(), (after - before).tolist(), strict=True))
    even = [
        (start * (stop / start) ** (lead / (lead - end)), 0.0)
        for (start, lead), (stop, end) in pairwise(points)
        if lead * end < 0
    ]
    return sorted(points + even)


def leads_table(curves: Curves) -> Table:
    """Return a table of the leads of all recipes over the first, for curves against seconds."""
    baseline, *others = curves
    rows = [
        [label, format_duration(cost), f"{lead:+.1f}" if lead else "equal"]
        for label in others
        for cost, lead in leads(curves[baseline], curves[label])
    ]
    return Table(["config", "training time", f"points above\n{baseline}"], rows)


def draw_curves(
    axes: Axes, curves: Curves, runs: pd.DataFrame, *, logarithmic: bool
) -> dict[str, str]:
    """Draw curves with error bars.

    Args:
        axes: Axes to draw in.
        curves: The curves. An empty curve only gets a legend entry.
        runs: Table of runs, for the numbers of seeds in the legend.
        logarithmic: Whether to draw costs on a logarithmic axis and the length next to each point.

    Returns:
        Maps the label of each curve to its colour.
    """
    from matplotlib.ticker import LogLocator  # Lazy: importing matplotlib takes about a second.

    colours = dict(zip(curves, cycle(COLOURS), strict=False))
    seeds = runs.groupby("label")["seed"].nunique()
    style: dict[str, Any] = {"marker": "o", "mec": "white", "lw": 2, "capsize": 4}
    for label, curve in curves.items():
        name = f"{label} (n = {seeds.get(label, 0)})"
        error = curve["std"].fillna(0.0)
        axes.errorbar(
            curve["cost"], curve["accuracy"], error, color=colours[label], label=name, **style
        )
        for point in curve.itertuples() if logarithmic else []:
            axes.annotate(f" {point.length:g}×", (point.cost, point.accuracy), fontsize=8, va="top")
    if logarithmic:
        axes.set_xscale("log")
        axes.margins(x=0.1)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda x, _: format_flops(x).removesuffix("FLOP"))
        axes.minorticks_off()
    return colours
