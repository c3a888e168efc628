"""What a table or figure of the paper consists of: trainings, and what was published of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slowfast_patches.utils.report import Mean

__all__ = ["SCRATCH", "Experiment", "Published", "Row", "Start", "Training", "per_cent"]

Start = str
"""Where the weights come from: `SCRATCH`, "imagenet" or "kinetics"."""

SCRATCH: Start = "scratch"


@dataclass(frozen=True)
class Training:
    """A arm of configs/ at some length.

    recipe: the file, relative to configs/; the path of a user's own is absolute.
    factor: epochs as a multiple of the baseline's; None leaves the recipe's own.
    as_long_as: train for as many iterations as this one takes, instead of `factor`.
    overrides: further KEY VALUE pairs, with `variant` as their name.
    start: the weights that it starts from.
    """

    recipe: str
    factor: float | None = None
    as_long_as: Training | None = None
    overrides: tuple[str, ...] = ()
    variant: str = ""
    start: Start = SCRATCH

    @property
    def folder(self) -> str:
        """The name of its runs' folder; the same training has the same one in every table."""
        path = Path(self.recipe)
        name = str(Path("own", path.stem) if path.is_absolute() else path.with_suffix(""))
        name += f"_{self.variant}" if self.variant else ""
        if self.as_long_as is not None:
            other = self.as_long_as
            return f"{name}_as_long_as_multigrid" + _times(other.factor)
        return name + _times(self.factor)


@dataclass(frozen=True)
class Published:
    """What the paper gives: metrics in per cent by name, and the speed-up in wall-clock.

    `speed_up` is relative to the row's baseline.
    """

    metrics: Mapping[str, Mean] = field(default_factory=dict, hash=False)
    speed_up: float | None = None


@dataclass(frozen=True)
class Row:
    """A line of a table or a point of a figure.

    `baseline` is what its speed-up is relative to; itself for a baseline. `curve` names the curve
    of a figure that the point lies on.
    """

    label: str
    training: Training
    baseline: Training
    published: Published = Published()
    curve: str = ""


@dataclass(frozen=True)
class Experiment:
    """A table or a figure. `note` says what the paper's text at hand leaves open."""

    name: str
    title: str
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]
    published_runs: int = 1
    note: str = ""

    @property
    def is_figure(self) -> bool:
        return self.name.startswith("figure")


def per_cent(
    top1: float, top5: float | None = None, *, std: float | None = None, std5: float | None = None
) -> dict[str, Mean]:
    """Published accuracies, with their standard deviations over runs where given."""
    values = {"top1": Mean(top1, std)}
    return values if top5 is None else values | {"top5": Mean(top5, std5)}


def _times(factor: float | None) -> str:
    return "" if factor is None else f"_x{factor:g}"
