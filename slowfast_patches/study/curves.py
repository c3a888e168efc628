"""Accuracy as a function of the training cost, for recipes trained for several lengths.

A curve gives, for each cost, the best accuracy of all trainings that cost no more. Between two
neighbouring lengths, accuracy is interpolated linearly in the logarithm of the cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from slowfast_patches.config.metrics import metric_title
from slowfast_patches.study.report import Table
from slowfast_patches.utils.pictures import COLOURS, add_legend, new_figure, save_figure
from slowfast_patches.utils.tables import format_duration, format_flops

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXES = {"seconds": "clock", "iterations": "iterations", "flops": "flops"}
"""Maps each kind of cost to its column in the table of `Study.runs`."""

LONG_TITLES = {"top1": "top-1 accuracy", "map": "mean average precision"}
"""Maps the names of primary metrics to titles for headings and axes."""

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
        A table with one row per length, sorted by cost. The columns are length, cost, accuracy,
        std, best and best_std. `best` is the highest accuracy up to the cost of the row, and
        `best_std` is the standard deviation of that accuracy.
    """
    columns = {"length": lengths, "cost": costs, "accuracy": accuracies, "std": stds}
    curve = pd.DataFrame(columns, dtype=float).sort_values("cost", ignore_index=True)
    best = [curve["accuracy"][: row + 1].idxmax() for row in curve.index]
    curve[["best", "best_std"]] = curve.loc[best, ["accuracy", "std"]].to_numpy()
    return curve


def curves_of(runs: pd.DataFrame, axis: str, metric: str) -> dict[str, pd.DataFrame]:
    """Return the curve of each recipe that has finished runs.

    Args:
        runs: Table returned by `Study.runs`.
        axis: Kind of cost, a key of `AXES`.
        metric: Name of the metric, such as "top1".

    Returns:
        Maps the label of each recipe to the curve built by `make_curve`.
    """
    curves = dict[str, pd.DataFrame]()
    for label, own in runs.dropna(subset=[metric]).groupby("label", sort=False):
        lengths = own.groupby("length")
        accuracy = lengths[metric].agg(["mean", "std"])
        cost = lengths[AXES[axis]].mean()
        curves[str(label)] = make_curve(
            cost.index.to_numpy(), cost.array, accuracy["mean"].array, accuracy["std"].array
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
        cent, and "what" a description such as "at 0.5×". Each key of `AXES` has the costs returned
        by `level`.
    """
    by_axis = {axis: curves_of(runs, axis, metric) for axis in AXES}
    baseline = next(iter(by_axis["iterations"].values()))
    names = dict[float, str]()
    for length, accuracy in zip(baseline["length"], baseline["best"], strict=True):
        names.setdefault(float(accuracy), f"at {length:g}×")
    if (near := max(names) - 1) > 0:
        names.setdefault(near, "1 point below its best")
    return [
        {"accuracy": accuracy, "what": names[accuracy]}
        | {axis: level(curves, accuracy) for axis, curves in by_axis.items()}
        for accuracy in sorted(names, reverse=True)
    ]


def level(curves: Curves, accuracy: float) -> dict[str, Any]:
    """Return the cost at which each recipe reaches an accuracy.

    Returns:
        Maps the label of each recipe to a dictionary, or to None if the recipe does not reach the
        accuracy. The keys of the dictionary are:

        - cost: Cost at which the recipe reaches the accuracy.
        - at_most: Whether the cost is only an upper bound, as in `reach`.
        - baseline_ratio: Cost of the first recipe divided by `cost`, as a dictionary of `value` and
          `bound` ("=", "≥" or "≤"). None if the first recipe does not reach the accuracy, or if
          both costs are upper bounds.
    """
    reaches = {label: reach(curve, accuracy) for label, curve in curves.items()}
    first = next(iter(reaches.values()))
    return {
        label: ours
        and {"cost": ours[0], "at_most": ours[1], "baseline_ratio": first and _ratio(first, ours)}
        for label, ours in reaches.items()
    }


def _ratio(first: tuple[float, bool], ours: tuple[float, bool]) -> dict[str, Any] | None:
    if first[1] and ours[1]:
        return None
    return {"value": first[0] / ours[0], "bound": "≥" if ours[1] else "≤" if first[1] else "="}


def levels_table(levels: Sequence[Mapping[str, Any]], metric: str) -> Table:
    """Format the result of `levels_of` as a table with one row per accuracy."""
    baseline, *others = levels[0]["seconds"]
    headers = [baseline, f"{metric_title(metric)}, %", "time"]
    headers += [text for label in others for text in (f"{label},\ntime", "speed-up")]
    rows = list[list[str]]()
    for row in levels:
        cells = [row["what"], f"{row['accuracy']:.1f}"]
        for cost in row["seconds"].values():
            time, speed_up = "not reached", "–"
            if cost:
                time = f"{'≤ ' * cost['at_most']}{format_duration(cost['cost'])}"
            if cost and (ratio := cost["baseline_ratio"]):
                speed_up = f"{ratio['bound']} {ratio['value']:.2f}×".removeprefix("= ")
            cells += [time, speed_up]
        del cells[3]  # speed-up of the baseline
        rows.append(cells)
    return Table(headers, rows)


def stretches(first: pd.DataFrame, second: pd.DataFrame) -> list[tuple[float, float, float, float]]:
    """Split the cost range that two curves share into intervals where one curve is higher.

    The curves break even where one interval ends and the next begins.

    Returns:
        One tuple (start, stop, lead, spread) per interval. The list is empty if the curves share no
        costs. `start` and `stop` are costs. `lead` is the largest difference of the curves in
        percentage points, negative if the second curve is lower. `spread` is the standard deviation
        of this difference: the square root of the sum of both variances. `spread` is nan if a curve
        has a single seed.
    """
    low = max(first["cost"].min(), second["cost"].min())
    high = min(first["cost"].max(), second["cost"].max())
    if low >= high:
        return []

    def read(column: str, cost: float) -> tuple[float, float]:
        values = [np.interp(np.log(cost), np.log(c["cost"]), c[column]) for c in (first, second)]
        return float(values[0]), float(values[1])

    def lead(cost: float) -> float:
        before, after = read("best", cost)
        return round(after - before, 9)

    costs = set(pd.concat([first, second])["cost"].clip(low, high))
    for start, stop in pairwise(sorted(costs)):
        if lead(start) * lead(stop) < 0:
            costs.add(start * (stop / start) ** (lead(start) / (lead(start) - lead(stop))))
    found = list[tuple[float, float, float, float]]()
    for start, stop in pairwise(sorted(costs)):
        largest = max(start, stop, key=lambda cost: abs(lead(cost)))
        part = (start, stop, lead(largest), math.hypot(*read("best_std", largest)))
        if found and np.sign(found[-1][2]) == np.sign(part[2]):
            before = found.pop()
            part = (before[0], stop, *max(before, part, key=lambda part: abs(part[2]))[2:])
        found.append(part)
    return found


def format_break_even(curves: Curves) -> list[str]:
    """Return one paragraph per recipe that says when it is above or below the baseline."""
    baseline, *others = curves
    texts = list[str]()
    for label in others:
        lines = [f"{label} against {baseline}:\n"]
        for start, stop, lead, spread in stretches(curves[baseline], curves[label]):
            side = "equal"
            if lead:
                side = f"{'above' if lead > 0 else 'below'} by up to {abs(lead):.1f} points "
                side += f"(standard deviation: {spread:.1f})".replace("nan", "unknown")
            lines.append(f"- from {format_duration(start)} to {format_duration(stop)}: {side}")
        if len(lines) == 1:
            lines.append("- The two curves share no training times. Give more --lengths.")
        texts.append("\n".join(lines))
    return texts


def explain_curves(step_times: str | None) -> str:
    """Return a paragraph that explains how times and accuracies are computed from the runs."""
    seconds = (
        "Times are wall-clock training times, which increase if the machine is busy. They include "
        "data loading but not evaluation."
    )
    if step_times is not None:
        seconds = (
            f"Times are the iterations of each run × the step times of {step_times}, which were "
            "measured separately. They exclude data loading and evaluation. The table of runs also "
            "has the wall-clock times."
        )
    return (
        f"{seconds} Accuracies are final results, averaged over seeds. ± is the sample standard "
        "deviation over seeds. A curve shows the best accuracy up to each time. Between two "
        "lengths, the curve is interpolated linearly in the logarithm of the time. ≤ means that "
        "even the shortest training exceeds the accuracy. The standard deviation of a difference "
        "is the square root of the sum of both variances. It is unknown for a single seed."
    )


def draw_panels(
    path: Path,
    panels: Mapping[str, Curves],
    seeds: Mapping[str, int],
    titles: tuple[str, str, str],
    add: Callable[[Axes, Mapping[str, str]], None],
    *,
    logarithmic: bool,
) -> None:
    """Draw curves with error bars, one panel for each kind of cost, and save the figure.

    Args:
        path: File to save.
        panels: Maps the title of each x axis to the curves of its panel. An empty curve only gets a
            legend entry.
        seeds: Maps the label of each recipe to its number of seeds, which the legend shows.
        titles: Titles of the figure, the y axis and the legend.
        add: Function that adds elements to a panel. Its arguments are the axes of the panel and a
            mapping from labels to colours.
        logarithmic: Whether to draw costs on a logarithmic axis and the length next to each point.
    """
    from matplotlib.ticker import LogLocator  # Lazy: importing matplotlib takes about a second.

    number = len(panels)
    figure, all_axes = new_figure(rows=1, columns=number, width=4 + 4 * number, height=5)
    style: dict[str, Any] = {"marker": "o", "mec": "white", "lw": 2, "capsize": 4}
    for axes, (title, curves) in zip(all_axes, panels.items(), strict=True):
        colours = dict(zip(curves, cycle(COLOURS), strict=False))
        for label, curve in curves.items():
            name = f"{label} (n = {seeds[label]})" if len(curve) else f"{label} (missing)"
            style |= {"color": colours[label], "label": name, "yerr": curve["std"].fillna(0.0)}
            axes.errorbar(curve["cost"], curve["accuracy"], **style)
            for point in curve.itertuples() if logarithmic else []:
                axes.annotate(
                    f"{point.length:g}×",
                    (point.cost, point.accuracy),
                    xytext=(9, -12),
                    textcoords="offset points",
                    fontsize=8,
                    color=colours[label],
                )
        add(axes, colours)
        axes.set_xlabel(title)
        if logarithmic:
            axes.set_xscale("log")
            axes.margins(x=0.1)
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(lambda x, _: format_flops(x).removesuffix("FLOP"))
            axes.minorticks_off()
    all_axes[0].set_ylabel(titles[1])
    add_legend(figure, all_axes[0], titles[2], 2)
    figure.suptitle(titles[0], fontsize=11)
    save_figure(figure, path)
