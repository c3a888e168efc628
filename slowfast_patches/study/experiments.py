"""The paper's tables and figures, and curves and tables of our own: what is trained for each, and
what was published of it.

They are data: published.yaml. A training that appears in several tables is one training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from slowfast_patches.config.scale import as_overrides
from slowfast_patches.utils.tables import Mean

__all__ = [
    "EXPERIMENTS",
    "PAPER",
    "PROOF",
    "SCRATCH",
    "Experiment",
    "Row",
    "Training",
    "trainings_of",
]

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
        own = Path("own", self.data, path.stem)
        name = str(own if path.is_absolute() else path.with_suffix(""))
        name += f"_{self.variant}" if self.variant else ""
        multiple = self._multiple
        if self.as_long_as is not None:
            name, multiple = f"{name}_as_long_as_multigrid", self.as_long_as._multiple
        return name if multiple is None else f"{name}_x{multiple:g}"

    @property
    def _multiple(self) -> float | None:
        return self.factor if self.length == 1 else self.length


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

    Curves of our own have `lengths`, at which each recipe is trained. `seeds` is how many of the
    seeds that are asked for it takes, the first ones; None: all.
    """

    name: str
    title: str
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]
    published_runs: int = 1
    note: str = ""
    lengths: tuple[float, ...] = ()
    seeds: int | None = None

    @property
    def is_figure(self) -> bool:
        return self.name.startswith("figure")

    @property
    def is_ours(self) -> bool:
        """Whether it is none of the paper's: nothing was published of it."""
        return not any(row.source for row in self.rows)

    def seeds_of(self, asked: Sequence[int]) -> tuple[int, ...]:
        """Those with which it is trained, of the seeds that are asked for."""
        return tuple(asked[: self.seeds])


def trainings_of(experiments: Iterable[Experiment]) -> list[Training]:
    """Every training of some experiments, once, the shorter lengths of a recipe first; of the same
    length a baseline before what is relative to it."""
    found = dict[Training, None]()
    for row in (row for experiment in experiments for row in experiment.rows):
        found |= dict.fromkeys([row.training.baseline or row.training, row.training])
    return sorted(found, key=lambda training: training.length)


def _experiment(name: str, content: Mapping[str, Any]) -> Experiment:
    common = {key: content[key] for key in _OF_ALL_ROWS if key in content}
    lines = [common | line for line in content.get("rows") or _points(content)]
    found = dict[str, Row]()
    for line in sorted(lines, key=lambda line: "as_long_as" in line):
        found[line["label"]] = _row(line, found)
    return Experiment(
        name=name,
        title=content["title"],
        metrics=tuple(content["metrics"]),
        rows=tuple(found[line["label"]] for line in lines),
        published_runs=content.get("published_runs", 1),
        note=content.get("note", ""),
        lengths=tuple(content.get("lengths", ())),
        seeds=content.get("seeds"),
    )


_OF_ALL_ROWS = ("recipe", "baseline", "start", "data", "length", "keys")
"""What may be said once, for every row that does not say it itself."""


def _points(figure: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A line for each point of each curve."""
    for curve in figure["curves"]:
        for length in figure.get("lengths", ()):
            label = f"{curve['label']}, {length:g}× its length"
            yield {**curve, "curve": curve["label"], "label": label, "length": length}
        for factor in figure.get("factors", ()):
            point = {**curve, "curve": curve["label"]}
            point["label"] = f"{curve['label']}, {factor:g}× epochs"
            point["factor"] = None if factor == curve.get("own", 1.0) else factor
            yield point | curve.get("published", {}).get(factor, {})


def _row(line: Mapping[str, Any], others: Mapping[str, Row]) -> Row:
    recipe, data = line.get("baseline", line["recipe"]), line.get("data", "")
    start, keys = line.get("start", SCRATCH), line.get("keys", {})
    baseline = Training(f"{recipe}.yaml", overrides=as_overrides(keys), start=start, data=data)
    training = Training(
        recipe=f"{line['recipe']}.yaml",
        baseline=baseline,
        factor=line.get("factor"),
        as_long_as=others[line["as_long_as"]].training if "as_long_as" in line else None,
        length=line.get("length", 1.0),
        overrides=as_overrides(keys | line.get("overrides", {})),
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

PAPER = tuple(name for name, experiment in EXPERIMENTS.items() if not experiment.is_ours)
"""The names of the paper's own."""

PROOF = tuple(name for name in EXPERIMENTS if name not in PAPER)
"""The names of ours: what the method is worth on data that anyone can have."""
