"""What the plots share: a figure without global state, one look, and how it is saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "MUTED",
    "add_legend",
    "check_format",
    "new_figure",
    "save_figure",
    "time_unit",
]

COLOURS = ("#1f77b4", "#d1495b", "#2a9d6f", "#b07aa1", "#e08e45", "#5f6b7a", "#12a5b8")
"""A colour for each curve, distinct in print and for colour-blind readers."""

MUTED = "#8a8f98"
"""References: baselines, boundaries, notes."""


def new_figure(
    rows: int, width: float, height: float, ratios: list[float] | None = None, columns: int = 1
) -> tuple[Figure, list[Axes]]:
    """A figure of `rows` panels above each other on one x axis, and of `columns` beside each other
    on one y axis, in reading order; width and height in inches.

    It is made without pyplot, so that no backend is chosen and nothing has to be closed.
    """
    from matplotlib.figure import Figure  # lazy import: most of a second

    figure = Figure(figsize=(width, height), layout="constrained")
    heights = {"height_ratios": ratios or [1.0] * rows}
    grid = figure.subplots(
        rows, columns, sharex="col", sharey=columns > 1, squeeze=False, gridspec_kw=heights
    )
    panels = list(grid.flat)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e6e8eb", linewidth=0.8)
        axes.set_axisbelow(True)
    return figure, panels


def add_legend(figure: Figure, axes: Axes, title: str, columns: int = 1) -> None:
    """Explain the curves below the axes, where no curve ends."""
    handles = axes.get_legend_handles_labels()
    style: dict[str, Any] = {"title": title, "frameon": False, "ncols": columns}
    figure.legend(*handles, loc="outside lower center", **style)


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the path's suffix; the folder is made if need be.

    Raises:
        ValueError: a suffix that names no picture format.
    """
    check_format(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def check_format(path: Path) -> None:
    """Refuse a path whose picture could not be written.

    Raises:
        ValueError: a suffix that names no picture format.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    formats = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in formats:
        raise ValueError(f"cannot save a picture as '{path}'; give a name that ends in .png")


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit for an axis that reaches `seconds`, and how many seconds it has."""
    if seconds < 600:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < 2 * 3600 else ("hours", 3600.0)
