"""Accuracy against cost, of recipes at several lengths: what each accuracy of the baseline costs
each of them, and where they break even.

A curve is read on its monotone upper envelope (at a cost, the best of the trainings that cost no
more), linear in the logarithm of the cost between neighbouring lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from slowfast_patches.config.metrics import metric_title
from slowfast_patches.utils.tables import format_duration, format_table

__all__ = [
    "AXES",
    "Reach",
    "curves_of",
    "explain_curves",
    "format_break_even",
    "format_levels",
    "levels_json",
    "levels_of",
    "make_curve",
    "reach",
    "stretches",
]

AXES = {"seconds": "clock", "iterations": "iterations", "flops": "flops"}
"""The costs, and their columns in the table of runs."""


class Reach(NamedTuple):
    """The cost of an accuracy; `at_most` where already the shortest training is above it."""

    cost: float
    at_most: bool


class Stretch(NamedTuple):
    """A range of costs in which one of two curves is above the other.

    lead: the largest difference in it, in points; negative where the second curve is below.
    spread: the root of the sum of both curves' squared standard deviations there; nan of single
        seeds.
    """

    start: float
    stop: float
    lead: float
    spread: float


def make_curve(lengths: Any, costs: Any, accuracies: Any, stds: Any) -> pd.DataFrame:
    """A curve: length, cost, accuracy (per cent) and its std over seeds by rising cost; `best` and
    `best_std` are the envelope's."""
    columns = {"length": lengths, "cost": costs, "accuracy": accuracies, "std": stds}
    curve = pd.DataFrame(columns, dtype=float).sort_values("cost", ignore_index=True)
    reached = curve["accuracy"].to_numpy()
    best = [int(np.argmax(reached[: last + 1])) for last in range(len(reached))]
    curve["best"] = reached[best]
    curve["best_std"] = curve["std"].to_numpy()[best]
    return curve


def curves_of(runs: pd.DataFrame, axis: str, metric: str) -> dict[str, pd.DataFrame]:
    """The curve of each recipe with finished runs, by its label."""
    curves = dict[str, pd.DataFrame]()
    for label, own in runs.dropna(subset=[metric]).groupby("label", sort=False):
        means = own.groupby("length")[[AXES[axis], metric]].agg(["mean", "std"])
        cost = means[AXES[axis]]
        accuracy = means[metric]
        curves[str(label)] = make_curve(
            means.index.to_numpy(), cost["mean"], accuracy["mean"], accuracy["std"]
        )
    return curves


def reach(curve: pd.DataFrame | None, accuracy: float) -> Reach | None:
    """What an accuracy costs; None where no training has it."""
    if curve is None or not (curve["best"] >= accuracy).any():
        return None
    first = int((curve["best"] >= accuracy).argmax())
    if first == 0:
        return Reach(float(curve["cost"][0]), bool(curve["best"][0] > accuracy))
    between = curve[first - 1 : first + 1]
    return Reach(
        float(np.exp(np.interp(accuracy, between["best"], np.log(between["cost"])))), False
    )


def levels_of(curve: pd.DataFrame) -> dict[float, str]:
    """The accuracies of a curve, and which these are ("at 0.5×"), the best first; and 1 point below
    the best."""
    levels = dict[float, str]()
    for length, accuracy in zip(curve["length"], curve["best"], strict=True):
        levels.setdefault(float(accuracy), f"at {length:g}×")
    if (near := max(levels) - 1) > 0:
        levels.setdefault(near, "1 point below its best")
    return {accuracy: levels[accuracy] for accuracy in sorted(levels, reverse=True)}


def _ratio(baseline: Reach | None, ours: Reach | None) -> tuple[float, str] | None:
    """The baseline's cost as a multiple of ours, and "=", or "≥" or "≤" where one is a bound."""
    if baseline is None or ours is None or (baseline.at_most and ours.at_most):
        return None
    bound = "≥" if ours.at_most else "≤" if baseline.at_most else "="
    return baseline.cost / ours.cost, bound


def stretches(first: pd.DataFrame, second: pd.DataFrame) -> list[Stretch]:
    """Which of two curves is above, over the range of costs that both cover; they break even where
    one stretch ends and the next begins. Empty where there is no such range."""
    low = max(first["cost"].min(), second["cost"].min())
    high = min(first["cost"].max(), second["cost"].max())
    if low >= high:
        return []
    knots = {low, high, *first["cost"].clip(low, high), *second["cost"].clip(low, high)}
    costs = np.log(sorted(knots))

    def read(curve: pd.DataFrame, column: str) -> Any:
        return np.interp(costs, np.log(curve["cost"]), curve[column])

    leads = read(second, "best") - read(first, "best")
    spreads = np.hypot(read(first, "best_std"), read(second, "best_std"))
    edges = [costs[0]]
    for (start, stop), (before, after) in zip(pairwise(costs), pairwise(leads), strict=True):
        if before * after < 0 or (before and not after and stop < costs[-1]):
            edges.append(start + (stop - start) * before / (before - after))
    found = list[Stretch]()
    for start, stop in pairwise([*edges, costs[-1]]):
        inside = np.flatnonzero((costs >= start) & (costs <= stop))
        largest = inside[np.argmax(np.abs(leads[inside]))]
        found.append(
            Stretch(*map(float, (np.exp(start), np.exp(stop), leads[largest], spreads[largest])))
        )
    return found


def format_levels(
    curves: Mapping[str, pd.DataFrame], metric: str, *, markdown: bool = False
) -> str:
    """The table: a row for each accuracy of the first curve, with the time that each recipe needs
    and the ratio of the first's time to it."""
    baseline, *others = curves
    headers = [baseline, f"{metric_title(metric)}, %", "time"]
    for label in others:
        headers += [f"{label},\ntime", "speed-up"]
    rows = list[list[str]]()
    for accuracy, what in levels_of(curves[baseline]).items():
        first = reach(curves[baseline], accuracy)
        cells = [what, f"{accuracy:.1f}", _format_reach(first)]
        for label in others:
            ours = reach(curves[label], accuracy)
            value, bound = _ratio(first, ours) or (0.0, "")
            speed_up = f"{bound} {value:.2f}×".removeprefix("= ") if bound else "–"
            cells += [_format_reach(ours), speed_up]
        rows.append(cells)
    return format_table(headers, rows, markdown=markdown)


def _format_reach(reached: Reach | None) -> str:
    if reached is None:
        return "not reached"
    return f"{'≤ ' if reached.at_most else ''}{format_duration(reached.cost)}"


def format_break_even(curves: Mapping[str, pd.DataFrame]) -> list[str]:
    """A paragraph for each curve but the first: where it is above the first, in time."""
    baseline, *others = curves
    texts = list[str]()
    for label in others:
        lines = [
            f"- from {format_duration(part.start)} to {format_duration(part.stop)}: {_lead(part)}"
            for part in stretches(curves[baseline], curves[label])
        ]
        lines = lines or ["- no range of training times in common; give one further lengths"]
        texts.append("\n".join([f"{label} against {baseline}:\n", *lines]))
    return texts


def _lead(part: Stretch) -> str:
    if not part.lead:
        return "equal"
    side = "above" if part.lead > 0 else "below"
    spread = (
        "of single seeds" if np.isnan(part.spread) else f"the seeds' spread: ± {part.spread:.1f}"
    )
    return f"{side} by up to {abs(part.lead):.1f} points ({spread})"


def explain_curves(step_times: str | None) -> str:
    """How the table and the picture are read from the runs."""
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


def levels_json(runs: pd.DataFrame, metric: str) -> list[dict[str, Any]]:
    """What each accuracy of the first curve costs each recipe, as plain data; null is an accuracy
    that is not reached."""
    by_axis = {axis: curves_of(runs, axis, metric) for axis in AXES}
    baseline = next(iter(by_axis["iterations"].values()))
    return [
        {"accuracy": accuracy, "what": what}
        | {axis: _level_json(curves, accuracy) for axis, curves in by_axis.items()}
        for accuracy, what in levels_of(baseline).items()
    ]


def _level_json(curves: Mapping[str, pd.DataFrame], accuracy: float) -> dict[str, Any]:
    reaches = {label: reach(curve, accuracy) for label, curve in curves.items()}
    first = next(iter(reaches.values()))
    found = dict[str, Any]()
    for label, ours in reaches.items():
        ratio = _ratio(first, ours)
        found[label] = ours and {
            **ours._asdict(),
            "baseline_ratio": ratio and {"value": ratio[0], "bound": ratio[1]},
        }
    return found
