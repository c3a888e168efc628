"""Accuracy against cost, of recipes at several lengths: what each accuracy of the baseline costs
each of them, where they break even, and the plot.

A curve is read on its monotone upper envelope (at a cost, the best of the trainings that cost no
more), linear in the logarithm of the cost between neighbouring lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from slowfast_patches.config.metrics import metric_title
from slowfast_patches.utils.pictures import COLOURS
from slowfast_patches.utils.tables import format_duration, format_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "AXES",
    "LONG_TITLES",
    "curves_of",
    "draw_curves",
    "explain_curves",
    "format_break_even",
    "format_levels",
    "level",
    "levels_of",
    "make_curve",
    "reach",
    "set_log_axis",
    "stretches",
]

AXES = {"seconds": "clock", "iterations": "iterations", "flops": "flops"}
"""The costs, and their columns in the table of runs."""

LONG_TITLES = {"top1": "top-1 accuracy", "map": "mean average precision"}
"""Primary metrics, where there is room."""

Curves = Mapping[str, pd.DataFrame]
"""The curve of each recipe, by its label; the baseline's first."""


def make_curve(lengths: Any, costs: Any, accuracies: Any, stds: Any) -> pd.DataFrame:
    """A curve: length, cost, accuracy (per cent) and its std over seeds by rising cost; `best` and
    `best_std` are the envelope's."""
    columns = {"length": lengths, "cost": costs, "accuracy": accuracies, "std": stds}
    curve = pd.DataFrame(columns, dtype=float).sort_values("cost", ignore_index=True)
    curve["best"] = curve["accuracy"].cummax()
    curve["best_std"] = curve["std"].where(curve["accuracy"] == curve["best"]).ffill()
    return curve


def curves_of(runs: pd.DataFrame, axis: str, metric: str) -> dict[str, pd.DataFrame]:
    """The curves of the recipes with finished runs: means over seeds."""
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
    """What an accuracy costs, and whether that is an upper bound, as the shortest training is above
    it already; None where no training has it."""
    above = curve["best"] >= accuracy
    if not above.any():
        return None
    first = int(above.argmax())
    if first == 0:
        return float(curve["cost"][0]), bool(curve["best"][0] > accuracy)
    between = curve[first - 1 : first + 1]
    return float(np.exp(np.interp(accuracy, between["best"], np.log(between["cost"])))), False


def levels_of(runs: pd.DataFrame, metric: str) -> list[dict[str, Any]]:
    """What each accuracy of the first recipe costs each of them, the best first, as plain data; its
    accuracies at its lengths, and 1 point below the best."""
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
    """The cost of an accuracy for each recipe, None where it is not reached.

    A cost is `at_most` one where `reach` gives a bound. `baseline_ratio` is the first recipe's cost
    as a multiple of it, with a bound "=", "≥" or "≤"; None where both costs are bounds.
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


def format_levels(levels: Sequence[Mapping[str, Any]], metric: str, *, markdown: bool) -> str:
    """The table of `levels_of`: the time that each recipe needs for each accuracy, and the ratio of
    the first's time to it."""
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
    return format_table(headers, rows, markdown=markdown)


def stretches(first: pd.DataFrame, second: pd.DataFrame) -> list[tuple[float, float, float, float]]:
    """Which of two curves is above, over the range of costs that both cover; they break even where
    one stretch ends and the next begins. Empty where there is no such range.

    Returns:
        (start, stop, lead, spread) of each stretch: costs, the largest difference in points,
        negative where the second curve is below, and the root of the sum of both curves' squared
        standard deviations there, nan of single seeds.
    """
    low = max(first["cost"].min(), second["cost"].min())
    high = min(first["cost"].max(), second["cost"].max())
    if low >= high:
        return []

    def read(curve: pd.DataFrame, column: str) -> Any:
        return np.interp(costs, np.log(curve["cost"]), curve[column])

    costs = np.log(np.unique([low, high, *pd.concat([first, second])["cost"].clip(low, high)]))
    leads = read(second, "best") - read(first, "best")
    before, after = leads[:-1], leads[1:]
    crosses = before * after < 0
    parts = before[crosses] / (before - after)[crosses]
    costs = np.sort(np.append(costs, costs[:-1][crosses] + parts * np.diff(costs)[crosses]))
    leads = np.round(read(second, "best") - read(first, "best"), 9)
    spreads = np.hypot(read(first, "best_std"), read(second, "best_std"))
    signs = np.sign(leads[:-1] + leads[1:])
    found = list[tuple[float, float, float, float]]()
    for _, group in groupby(range(len(signs)), key=lambda number: signs[number]):
        inside = list(group)
        inside.append(inside[-1] + 1)
        largest = inside[np.argmax(np.abs(leads[inside]))]
        start, stop = np.exp(costs[inside[0]]), np.exp(costs[inside[-1]])
        found.append((float(start), float(stop), float(leads[largest]), float(spreads[largest])))
    return found


def format_break_even(curves: Curves) -> list[str]:
    """A paragraph for each curve but the first: where it is above the first, in time."""
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
            lines.append("- no range of training times in common; give one further lengths")
        texts.append("\n".join(lines))
    return texts


def explain_curves(step_times: str | None) -> str:
    """How the table and the plot are read from the runs."""
    seconds = (
        "wall-clock of each run as measured, whatever else the machine did meanwhile; training "
        "with loading, without evaluation"
    )
    if step_times is not None:
        seconds = (
            f"each run's iterations × the step times of {step_times}, measured alone; without "
            "loading and evaluation (the table of runs has what they took)"
        )
    return (
        f"Seconds: {seconds}. An accuracy's time is interpolated, linearly in the logarithm of the "
        "time, between the means over seeds of neighbouring lengths, on the best result up to each "
        "time; ≤: already the shortest training is above it. Accuracies are of final results, ± "
        "the sample standard deviation over seeds; the spread of a difference is the root of the "
        "sum of both squared deviations. One seed says nothing of the spread."
    )


def draw_curves(axes: Axes, curves: Curves) -> None:
    """Draw curves through the means, with their spread and their lengths."""
    style: dict[str, Any] = {"marker": "o", "mec": "white", "lw": 2, "capsize": 3}
    for number, (label, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        name = label if len(curve) else f"{label} (missing)"
        spread = curve["std"].fillna(0.0)
        axes.errorbar(
            curve["cost"], curve["accuracy"], yerr=spread, color=colour, label=name, **style
        )
        if curve["length"].nunique() > 1:
            for cost, accuracy, length in curve[["cost", "accuracy", "length"]].to_numpy():
                axes.annotate(
                    f"{length:g}×",
                    (cost, accuracy),
                    xytext=(4, 4),
                    textcoords="offset points",
                    fontsize=8,
                    color=colour,
                )


def set_log_axis(axes: Axes, write: Callable[[float], str]) -> None:
    """Make the x axis logarithmic, with round numbers as `write` has them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.margins(x=0.1)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
