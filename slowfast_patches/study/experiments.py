"""The paper's tables and figures: what is trained for each, and what was published of it.

They are data: published.yaml. A training that appears in several tables is one training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from slowfast_patches.config.scale import as_overrides
from slowfast_patches.utils.tables import Mean

__all__ = [
    "EXPERIMENTS",
    "PAPER",
    "SCRATCH",
    "Experiment",
    "PaperRow",
    "PaperTraining",
    "trainings_of",
]

SCRATCH = "scratch"


@dataclass(frozen=True)
class PaperTraining:
    """A recipe of configs/ at some length.

    recipe: the file, relative to configs/; the path of a user's own is absolute.
    baseline: what its speed-up is relative to; None for a baseline.
    factor: epochs as a multiple of the baseline's; None leaves the recipe's own.
    as_long_as: train for as many iterations as this one takes, instead of `factor`.
    overrides: further KEY VALUE pairs, with `variant` as their name.
    start: the weights that it starts from: `SCRATCH`, "imagenet" or "kinetics".
    """

    recipe: str
    baseline: PaperTraining | None = None
    factor: float | None = None
    as_long_as: PaperTraining | None = None
    overrides: tuple[str, ...] = ()
    variant: str = ""
    start: str = SCRATCH

    @property
    def folder(self) -> str:
        """The name of its runs' folder; the same training has the same one in every table."""
        path = Path(self.recipe)
        own = Path("own", path.stem)
        name = str(own if path.is_absolute() else path.with_suffix(""))
        name += f"_{self.variant}" if self.variant else ""
        factor = self.factor
        if self.as_long_as is not None:
            name += "_as_long_as_multigrid"
            factor = self.as_long_as.factor
        return name if factor is None else f"{name}_x{factor:g}"


@dataclass(frozen=True)
class PaperRow:
    """A line of a table, or a point of a figure on its `curve`, and what the paper gives of it:
    metrics in per cent by name, and the speed-up in wall-clock time; `source` says where. Nothing
    is trained for a row that is `published_only`."""

    label: str
    training: PaperTraining
    metrics: Mapping[str, Mean] = field(default_factory=dict)
    speed_up: float | None = None
    source: str = ""
    curve: str = ""
    published_only: bool = False


@dataclass(frozen=True)
class Experiment:
    """A table or a figure. `note` says what the paper's text at hand leaves open, `published` where
    its numbers are from and on what they were measured.
    """

    name: str
    title: str
    metrics: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    published: str = "Wu et al., CVPR 2020, on P100 GPUs"
    published_runs: int = 1
    note: str = ""

    @property
    def is_figure(self) -> bool:
        return self.name.startswith("figure")


def trainings_of(experiments: Iterable[Experiment]) -> list[PaperTraining]:
    """Every training of some experiments, once; a baseline before what is relative to it."""
    trainings = dict[PaperTraining, None]()
    for row in (row for experiment in experiments for row in experiment.rows):
        trainings |= dict.fromkeys([row.training.baseline or row.training, row.training])
    return list(trainings)


def _experiment(name: str, content: Mapping[str, Any]) -> Experiment:
    common = {key: content[key] for key in _OF_ALL_ROWS if key in content}
    lines = [common | line for line in content.get("rows") or _points(content)]
    found = dict[str, PaperRow]()
    for line in sorted(lines, key=lambda line: "as_long_as" in line):
        found[line["label"]] = _row(line, found)
    return Experiment(
        name=name,
        title=content["title"],
        metrics=tuple(content["metrics"]),
        rows=tuple(found[line["label"]] for line in lines),
        published=content.get("published", Experiment.published),
        published_runs=content.get("published_runs", 1),
        note=content.get("note", ""),
    )


_OF_ALL_ROWS = ("recipe", "baseline", "start")
"""Given once for all rows that do not have their own."""


def _points(figure: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A line for each point of each curve."""
    for curve in figure["curves"]:
        for factor in figure["factors"]:
            point = {**curve, "curve": curve["label"]}
            point["label"] = f"{curve['label']}, {factor:g}× epochs"
            point["factor"] = None if factor == curve.get("own", 1.0) else factor
            yield point | curve.get("published", {}).get(factor, {})


def _row(line: Mapping[str, Any], others: Mapping[str, PaperRow]) -> PaperRow:
    recipe = line.get("baseline", line["recipe"])
    start = line.get("start", SCRATCH)
    baseline = PaperTraining(f"{recipe}.yaml", start=start)
    training = PaperTraining(
        recipe=f"{line['recipe']}.yaml",
        baseline=baseline,
        factor=line.get("factor"),
        as_long_as=others[line["as_long_as"]].training if "as_long_as" in line else None,
        overrides=as_overrides(line.get("overrides", {})),
        variant=line.get("variant", ""),
        start=start,
    )
    if training.folder == baseline.folder:
        training = baseline
    metrics = {
        name: Mean(*line[name]) if isinstance(line[name], list) else Mean(line[name], None)
        for name in ("top1", "top5", "map")
        if name in line
    }
    names = ("speed_up", "source", "curve", "published_only")
    return PaperRow(
        line["label"], training, metrics, **{name: line[name] for name in names if name in line}
    )


_PUBLISHED = Path(__file__).with_name("published.yaml")

EXPERIMENTS: Mapping[str, Experiment] = {
    name: _experiment(name, content)
    for name, content in yaml.safe_load(_PUBLISHED.read_text(encoding="utf-8")).items()
}
"""By the name that the command line takes."""

PAPER = tuple(name for name in EXPERIMENTS if name.startswith(("table", "figure")))
"""The names of the paper's own."""
