"""Curves of accuracy against cost, for recipes that are trained at several lengths.

A curve is evaluated on its monotone upper envelope: its value at a cost is the best accuracy of all
trainings that cost no more. Between neighbouring lengths it is linear in the logarithm of the cost.
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
"""Kinds of cost, and the column of `Study.runs` that each is read from."""

LONG_TITLES = {"top1": "top-1 accuracy", "map": "mean average precision"}
"""Titles of the primary metrics for headings and axes."""

Curves = Mapping[str, pd.DataFrame]
"""Curves by the label of their recipe, the baseline first."""


def make_curve(lengths: Any, costs: Any, accuracies: Any, stds: Any) -> pd.DataFrame:
    """Build a curve from its points.

    Args:
        lengths: multiples of the recipe's length.
        costs: the cost at each length.
        accuracies: the mean over seeds, in per cent.
        stds: the standard deviation over seeds.

    Returns:
        A row for each point by increasing cost, with the columns length, cost, accuracy and std,
        and best and best_std of the envelope.
    """
    columns = {"length": lengths, "cost": costs, "accuracy": accuracies, "std": stds}
    curve = pd.DataFrame(columns, dtype=float).sort_values("cost", ignore_index=True)
    curve["best"] = curve["accuracy"].cummax()
    curve["best_std"] = curve["std"].where(curve["accuracy"] == curve["best"]).ffill()
    return curve


def curves_of(runs: pd.DataFrame, axis: str, metric: str) -> dict[str, pd.DataFrame]:
    """Return the curve of each recipe with finished runs.

    Args:
        runs: table of `Study.runs`.
        axis: the cost, a key of `AXES`.
        metric: name of the accuracy.

    Returns:
        The curves of `make_curve` by label.
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
    """Return the cost of an accuracy.

    Returns:
        The cost, and whether it is only an upper bound. It is one if the shortest training exceeds
        the accuracy already. None if no training reaches the accuracy.
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
    """Return the costs of several accuracies for each recipe.

    The accuracies are those of the first recipe at its lengths, and its best one minus 1 point.

    Returns:
        Plain data for each accuracy, the highest first: the accuracy, what it is, and for each key
        of `AXES` the costs of `level`.
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
    """Return the cost of one accuracy for each recipe.

    Returns:
        A dictionary by label. A recipe that does not reach the accuracy has None. The others have:

        - cost: the cost.
        - at_most: whether the cost is only an upper bound, as in `reach`.
        - baseline_ratio: the first recipe's cost divided by this one, as a `value` and a `bound`
          ("=", "≥" or "≤"). It is None if both costs are upper bounds.
    """
    reaches = {label: reach(curve, accuracy) for label, curve in curves.items()}
    first = next(iter(reaches.values()))
    costs = dict[str, Any](reaches)
    for label, ours in reaches.items():
        if ours is not None:
            ratio = None
            if first is not None and not (first[1] and ours[1]):
                bound = "≥" if ours[1] else "≤" if first[1] else "="
                ratio = {"value": first[0] / ours[0], "bound": bound}
            costs[label] = {"cost": ours[0], "at_most": ours[1], "baseline_ratio": ratio}
    return costs


def levels_table(levels: Sequence[Mapping[str, Any]], metric: str) -> Table:
    """Format the result of `levels_of` as a table with a row for each accuracy."""
    baseline, *others = levels[0]["seconds"]
    headers = [baseline, f"{metric_title(metric)}, %", "time"]
    for label in others:
        headers += [f"{label},\ntime", "speed-up"]
    rows = list[list[str]]()
    for row in levels:
        cells = [row["what"], f"{row['accuracy']:.1f}"]
        for label, cost in row["seconds"].items():
            cells.append("not reached")
            if cost is not None:
                cells[-1] = f"{'≤ ' * cost['at_most']}{format_duration(cost['cost'])}"
            if label != baseline:
                ratio = cost and cost["baseline_ratio"]
                text = ratio and f"{ratio['bound']} {ratio['value']:.2f}×".removeprefix("= ")
                cells.append(text or "–")
        rows.append(cells)
    return Table(headers, rows)


def stretches(first: pd.DataFrame, second: pd.DataFrame) -> list[tuple[float, float, float, float]]:
    """Return which of two curves is higher, over the costs that both cover.

    Two curves break even where one stretch ends and the next one starts.

    Returns:
        A tuple (start, stop, lead, spread) for each stretch. The list is empty if the curves have
        no costs in common. `start` and `stop` are costs. `lead` is the largest difference in
        points, and negative if the second curve is lower. `spread` is the standard deviation of
        that difference, the root of the sum of both squared deviations. It is nan for single seeds.
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
    """Return a paragraph for each curve but the first: at which times it is above the first."""
    baseline, *others = curves
    texts = list[str]()
    for label in others:
        lines = [f"{label} against {baseline}:\n"]
        for start, stop, lead, spread in stretches(curves[baseline], curves[label]):
            side = "equal"
            if lead:
                side = f"{'above' if lead > 0 else 'below'} by up to {abs(lead):.1f} points "
                side += f"(the seeds' spread: ± {spread:.1f})".replace("± nan", "unknown")
            lines.append(f"- from {format_duration(start)} to {format_duration(stop)}: {side}")
        if len(lines) == 1:
            lines.append("- no training times in common. Give more --lengths")
        texts.append("\n".join(lines))
    return texts


def explain_curves(step_times: str | None) -> str:
    """Return a paragraph on how the table and the picture follow from the runs."""
    seconds = (
        "Times are the wall-clock times of the runs, whatever else the machine did meanwhile. They "
        "include loading, but not evaluation."
    )
    if step_times is not None:
        seconds = (
            f"Times are the iterations of each run × the step times of {step_times}, which were "
            "measured alone. They exclude loading and evaluation; the table of runs has the "
            "wall-clock times."
        )
    return (
        f"{seconds} The time of an accuracy is interpolated between the means over seeds of "
        "neighbouring lengths, linearly in the logarithm of the time, on the best result up to "
        "each time. ≤ means that the shortest training exceeds the accuracy already. Accuracies "
        "are those of the final results, ± the sample standard deviation over seeds. The spread of "
        "a difference is the root of the sum of both squared deviations. One seed tells nothing "
        "about the spread."
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
    """Draw curves with error bars into a file, one panel for each kind of cost.

    Args:
        path: the file.
        panels: curves by the title of the x axis. An empty curve gets a legend entry only.
        seeds: number of seeds by label, for the legend.
        titles: titles of the figure, of the y axis and of the legend.
        add: function that draws more into a panel, given the colours by label.
        logarithmic: whether costs are on a logarithmic axis, and points are marked by their
            lengths.
    """
    from matplotlib.ticker import LogLocator  # Lazy import, which takes most of a second.

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
    add_legend(figure, all_axes[0], titles[2], columns=2)
    figure.suptitle(titles[0], fontsize=11)
    save_figure(figure, path)
