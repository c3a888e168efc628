"""Create, style and save matplotlib figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from slowfast_patches.utils.errors import UserError, mistake_in
from slowfast_patches.utils.files import make_folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1f77b4", "#d1495b", "#2a9d6f", "#b07aa1", "#e08e45", "#5f6b7a", "#12a5b8")
"""Colours of curves. They can be told apart in print and by colour-blind readers."""

MUTED = "#8a8f98"
"""Grey for everything that is not a curve, such as reference lines and notes."""


def new_figure(
    rows: int, width: float, height: float, ratios: list[float] | None = None, columns: int = 1
) -> tuple[Figure, list[Axes]]:
    """Create a figure with a grid of panels.

    pyplot is not used, so no matplotlib backend is selected, and the figure need not be closed.

    Args:
        rows: Number of rows. The panels of a column share the x axis.
        width: Width of the figure in inches.
        height: Height of the figure in inches.
        ratios: Relative heights of the rows. None means equal heights.
        columns: Number of columns. The panels of a row share the y axis.

    Returns:
        The figure and the list of its panels, row by row.
    """
    from matplotlib.figure import Figure  # Lazy import, because matplotlib loads slowly.

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


def add_legend(figure: Figure, axes: Axes, title: str, columns: int) -> None:
    """Add a legend of the curves of a panel at the bottom of the figure."""
    handles = axes.get_legend_handles_labels()
    style: dict[str, Any] = {"title": title, "frameon": False, "ncols": columns}
    figure.legend(*handles, loc="outside lower center", **style)


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure to a file, and create the folder if needed.

    Args:
        figure: The figure.
        path: File to write. The suffix determines the picture format.

    Raises:
        ValueError: The suffix is not a picture format.
    """
    if not path.suffix:
        raise UserError(f"{path} has no suffix for the format of the picture. Write {path}.png")
    make_folder(path.parent)
    with mistake_in(f"{path} cannot be written", OSError, ValueError):
        figure.savefig(path, dpi=150)
