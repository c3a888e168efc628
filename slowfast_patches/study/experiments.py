"""The paper's tables and figures, and curves of our own: what is trained for each, and what was
published of it.

They are data: published.yaml. A training that appears in several tables is one training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from slowfast_patches.utils.tables import Mean

__all__ = ["EXPERIMENTS", "PAPER", "SCRATCH", "Experiment", "Row", "Training", "trainings_of"]

SCRATCH = "scratch"


@dataclass(frozen=True)
class Training:
    """A recipe of configs/ at some length.

    recipe: the file, relative to configs/; the path of a user's own is absolute.
    baseline: what its speed-up is relative to; None for a baseline.
    factor: epochs as a multiple of the baseline's; None leaves the recipe's own.
    as_long_as: train for as many iterations as this one takes, instead of `factor`.
    length: what all the recipe's lengths in epochs are multiplied by; a multigrid recipe's factor
        stays.
    overrides: further KEY VALUE pairs, with `variant` as their name.
    start: the weights that it starts from: `SCRATCH`, "imagenet" or "kinetics".
    data: the name that its data go by, where that is not its data set's.
    """

    recipe: str
    baseline: Training | None = None
    factor: float | None = None
    as_long_as: Training | None = None
    length: float = 1.0
    overrides: tuple[str, ...] = ()
    variant: str = ""
    start: str = SCRATCH
    data: str = ""

    @property
    def folder(self) -> str:
        """The name of its runs' folder; the same training has the same one in every table."""
        path = Path(self.recipe)
        name = str(Path("own", path.stem) if path.is_absolute() else path.with_suffix(""))
        name += f"_{self.variant}" if self.variant else ""
        factor = self.factor if self.length == 1 else self.length
        if self.as_long_as is not None:
            name, factor = f"{name}_as_long_as_multigrid", self.as_long_as.factor
        return name if factor is None else f"{name}_x{factor:g}"


@dataclass(frozen=True)
class Row:
    """A line of a table, or a point of a figure on its `curve`, and what the paper gives of it:
    metrics in per cent by name, and the speed-up in wall-clock time; `source` says where."""

    label: str
    training: Training
    metrics: Mapping[str, Mean] = field(default_factory=dict)
    speed_up: float | None = None
    source: str = ""
    curve: str = ""


@dataclass(frozen=True)
class Experiment:
    """A table or a figure. `note` says what the paper's text at hand leaves open.

    One of our own, of which nothing is published, has `lengths`, at which each recipe is trained.
    """

    name: str
    title: str
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]
    published_runs: int = 1
    note: str = ""
    lengths: tuple[float, ...] = ()

    @property
    def is_figure(self) -> bool:
        return self.name.startswith("figure")


def trainings_of(experiments: Iterable[Experiment]) -> list[Training]:
    """Every training of some experiments, once, the shorter lengths of a recipe first; of the same
    length a baseline before what is relative to it."""
    found = dict[Training, None]()
    for row in (row for experiment in experiments for row in experiment.rows):
        found |= dict.fromkeys([row.training.baseline or row.training, row.training])
    return sorted(found, key=lambda training: training.length)


def _experiment(name: str, content: Mapping[str, Any]) -> Experiment:
    lines = content.get("rows") or list(_points(content))
    found = dict[str, Row]()
    for line in sorted(lines, key=lambda line: "as_long_as" in line):
        found[line["label"]] = _row(line, found, content.get("start", SCRATCH))
    return Experiment(
        name=name,
        title=content["title"],
        metrics=tuple(content["metrics"]),
        rows=tuple(found[line["label"]] for line in lines),
        published_runs=content.get("published_runs", 1),
        note=content.get("note", ""),
        lengths=tuple(content.get("lengths", ())),
    )


def _points(figure: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A line for each point of each curve."""
    for curve in figure["curves"]:
        for length in figure.get("lengths", ()):
            point = {"baseline": figure["baseline"], "data": figure["data"], "length": length}
            label = f"{curve['label']}, {length:g}× its length"
            yield {**curve, **point, "curve": curve["label"], "label": label}
        for factor in figure.get("factors", ()):
            point = {**curve, "curve": curve["label"], "baseline": figure["baseline"]}
            point["label"] = f"{curve['label']}, {factor:g}× epochs"
            point["factor"] = None if factor == curve.get("own", 1.0) else factor
            yield point | curve.get("published", {}).get(factor, {})


def _row(line: Mapping[str, Any], others: Mapping[str, Row], start: str) -> Row:
    recipe, data = line.get("baseline", line["recipe"]), line.get("data", "")
    baseline = Training(f"{recipe}.yaml", start=start, data=data)
    training = Training(
        recipe=f"{line['recipe']}.yaml",
        baseline=baseline,
        factor=line.get("factor"),
        as_long_as=others[line["as_long_as"]].training if "as_long_as" in line else None,
        length=line.get("length", 1.0),
        overrides=tuple(line.get("overrides", ())),
        variant=line.get("variant", ""),
        start=start,
        data=data,
    )
    if training.folder == baseline.folder:
        training = baseline
    metrics = {
        name: Mean(*line[name]) if isinstance(line[name], list) else Mean(line[name], None)
        for name in ("top1", "top5", "map")
        if name in line
    }
    own = {name: line[name] for name in ("speed_up", "source", "curve") if name in line}
    return Row(line["label"], training, metrics, **own)


_PUBLISHED = Path(__file__).with_name("published.yaml")

EXPERIMENTS: Mapping[str, Experiment] = {
    name: _experiment(name, content)
    for name, content in yaml.safe_load(_PUBLISHED.read_text(encoding="utf-8")).items()
}
"""By the name that the command line takes."""

PAPER = tuple(name for name, experiment in EXPERIMENTS.items() if not experiment.lengths)
"""The names of the paper's own."""
