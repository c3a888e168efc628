"""Curves in words: the table of what each accuracy costs, and who is above whom from where on."""

from __future__ import annotations

from itertools import pairwise

from slowfast_patches.config.metrics import metric_title
from slowfast_patches.study.curves.curves import Curves, Level, Line
from slowfast_patches.study.curves.reading import Curve, Reach, Stretch, ratio_of, stretches
from slowfast_patches.utils.tables import format_duration, format_list, format_table

__all__ = ["explain_curves", "format_break_even", "format_levels"]

_AXIS = "seconds"

_NO_RATIO = "–"


def format_levels(curves: Curves, *, markdown: bool = False) -> str:
    """The table: a row for each accuracy, with each line's time and how many times less it is than
    the baseline's, for a terminal or in Markdown."""
    headers = [curves.lines[0].label, f"{metric_title(curves.metric)}, %", "time"]
    for line in curves.lines[1:]:
        headers += [f"{line.label},\ntime", "speed-up"]
    if markdown:
        headers = [header.replace("\n", " ") for header in headers]
    rows = [_cells(curves, level) for level in curves.levels()]
    return format_table(headers, rows, markdown=markdown)


def _cells(curves: Curves, level: Level) -> list[str]:
    first, *others = curves.reaches(_AXIS, level.accuracy)
    cells = [level.what, f"{level.accuracy:.1f}", _format_reach(first)]
    for reach in others:
        ratio = ratio_of(first, reach)
        bound = f"{ratio.bound} " if ratio and ratio.bound != "=" else ""
        cells += [_format_reach(reach), f"{bound}{ratio.value:.2f}×" if ratio else _NO_RATIO]
    return cells


def _format_reach(reach: Reach | None) -> str:
    if reach is None:
        return "not reached"
    return f"{'≤ ' if reach.at_most else ''}{format_duration(reach.cost)}"


def format_break_even(curves: Curves) -> list[str]:
    """A paragraph for each line but the baseline's: where it is above it, in time."""
    baseline = curves.lines[0]
    first = curves.curve(_AXIS, baseline)
    if first is None:
        return []
    texts = list[str]()
    for line in curves.lines[1:]:
        if (second := curves.curve(_AXIS, line)) is not None:
            texts.append(_against(line, baseline, first, stretches(first, second)))
    return texts


def _against(line: Line, baseline: Line, first: Curve, found: list[Stretch]) -> str:
    """What is found of a line against the baseline."""
    if not found:
        return (
            f"{line.label} and {baseline.label} have no range of training times in common; give "
            "one of them further lengths"
        )
    names = {1: line.label, -1: baseline.label}
    if places := [_place(after.start, first) for _, after in pairwise(found)]:
        title = f"{line.label} and {baseline.label} break even at {format_list(places)}"
    else:
        title = f"{line.label} and {baseline.label} do not break even in the range of both"
    parts = list[str]()
    for stretch in found:
        span = f"from {_place(stretch.start, first)} to {_place(stretch.stop, first)}"
        above = f"{names[stretch.above]} is above, {_lead(stretch)}" if stretch.above else "equal"
        parts.append(f"- {span}: {above}")
    brackets = f"in brackets, the length of {baseline.label} in the same time"
    return "\n".join([f"{title}; {brackets}:\n", *parts])


def _place(seconds: float, baseline: Curve) -> str:
    return f"{format_duration(seconds)} ({baseline.length_at(seconds):.3g}×)"


def _lead(stretch: Stretch) -> str:
    """By how much, and what that is worth."""
    least, most = f"{stretch.least:.1f}", f"{stretch.most:.1f}"
    points = f"by {most} points" if least == most else f"by {least} to {most} points"
    if stretch.beyond is None:
        return f"{points} (single seeds: their spread is not known)"
    spread = f"the seeds' spread (± {stretch.spread:.1f})"
    if stretch.beyond == 0:
        return f"{points}, within {spread}"
    return f"{points}, beyond {spread}{'' if stretch.beyond == 1 else ' in part'}"


def explain_curves(curves: Curves) -> str:
    """How the table and the sentences are read from the runs."""
    seconds = (
        "wall-clock of each run as measured, whatever else the machine did meanwhile; training "
        "with loading, without evaluation"
    )
    if curves.timed is not None:
        seconds = (
            f"each run's iterations × the step times of {curves.timed.source}, measured alone; "
            "without loading and evaluation (the table of runs has what they took)"
        )
    seeds = [m.runs for line in curves.lines for m in line.points.values()]
    single = "" if max(map(len, seeds), default=0) > 1 else " One seed says nothing of the spread."
    return (
        f"Seconds: {seconds}. An accuracy's time is interpolated, linearly in the logarithm of the "
        "time, between the means over seeds of neighbouring lengths, on the best result up to each "
        "time; ≤: already the shortest training is above it. Accuracies are of final results, ± "
        "the sample standard deviation over seeds; a difference is beyond the seeds' spread where "
        f"it is larger than the root of the sum of both squared deviations.{single}"
    )
