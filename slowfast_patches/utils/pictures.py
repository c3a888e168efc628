"""Shared parts of the plots: figures, colours, legends and files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1f77b4", "#d1495b", "#2a9d6f", "#b07aa1", "#e08e45", "#5f6b7a", "#12a5b8")
"""Colours of curves, distinct in print and for colour-blind readers."""

MUTED = "#8a8f98"
"""Colour of references, such as baselines, boundaries and notes."""


def new_figure(
    rows: int, width: float, height: float, ratios: list[float] | None = None, columns: int = 1
) -> tuple[Figure, list[Axes]]:
    """Make a figure with a grid of panels.

    It is made without pyplot, so no backend is chosen and the figure need not be closed.

    Args:
        rows: Number of rows. The panels of a column share the x axis.
        width: Width in inches.
        height: Height in inches.
        ratios: Relative heights of the rows.
        columns: Number of columns. The panels of a row share the y axis.

    Returns:
        The figure, and its panels in reading order.
    """
    from matplotlib.figure import Figure  # Lazy import, which takes most of a second.

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
    """Add a legend of the curves below the axes."""
    handles = axes.get_legend_handles_labels()
    style: dict[str, Any] = {"title": title, "frameon": False, "ncols": columns}
    figure.legend(*handles, loc="outside lower center", **style)


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure in the format of the path's suffix, and create the folder if needed.

    Raises:
        ValueError: The suffix is not a picture format.
    """
    check_format(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def check_format(path: Path) -> None:
    """Check that a path has the suffix of a picture format.

    Raises:
        ValueError: It has not.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    formats = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in formats:
        raise ValueError(f"cannot save a picture as '{path}'; use a file name that ends in .png")


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the name and length in seconds of the unit for an axis up to `seconds`."""
    if seconds < 600:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < 2 * 3600 else ("hours", 3600.0)
