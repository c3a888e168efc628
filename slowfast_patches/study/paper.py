"""Tables and figures of the paper: the trainings behind them, and the published numbers.

They are read from published.yaml. A training that appears in several tables is run once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from slowfast_patches.config import Recipe, load_recipe
from slowfast_patches.config.load import CONFIGS
from slowfast_patches.config.scale import as_overrides, scaled_lengths
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.study.arms import Arm, make_arm
from slowfast_patches.utils.tables import Mean

logger = logging.getLogger(__name__)

SCRATCH = "scratch"
"""Value of `Row.start` for a training from random weights."""


@dataclass(frozen=True)
class Row:
    """Row of a table, or point of a figure.

    Attributes:
        label: its name in the table.
        recipe: config file, relative to configs/. A user's own recipe has an absolute path.
        baseline: config file of the baseline.
        start: initial weights: `SCRATCH`, "imagenet" or "kinetics".
        factor: epochs as a multiple of the baseline's. None keeps those of the recipe.
        as_long_as: row whose number of iterations is trained, instead of `factor`.
        overrides: additional KEY VALUE pairs.
        variant: name of these pairs.
        metrics: published metrics in per cent.
        speed_up: published speed-up.
        source: where in the paper these numbers are.
        curve: name of its curve in a figure.
        published_only: whether nothing is trained for the row.
    """

    label: str
    recipe: str
    baseline: str
    start: str = SCRATCH
    factor: float | None = None
    as_long_as: Row | None = None
    overrides: tuple[str, ...] = ()
    variant: str = ""
    metrics: Mapping[str, Mean] = field(default_factory=dict)
    speed_up: float | None = None
    source: str = ""
    curve: str = ""
    published_only: bool = False

    @property
    def folder(self) -> str:
        """Name of the arm and of its folder, the same for equal trainings of several tables."""
        path = Path(self.recipe)
        name = str(Path("own", path.stem) if path.is_absolute() else path.with_suffix(""))
        name += f"_{self.variant}" if self.variant else ""
        factor = self.factor
        if self.as_long_as is not None:
            name += "_as_long_as_multigrid"
            factor = self.as_long_as.factor
        return name if factor is None else f"{name}_x{factor:g}"

    @property
    def reference(self) -> Row:
        """Training that the speed-up is relative to."""
        return Row("baseline", self.baseline, self.baseline, self.start)


@dataclass(frozen=True)
class Experiment:
    """Table or figure of the paper.

    Attributes:
        title: the heading.
        metrics: names of the metrics.
        rows: the rows.
        published: source of the published numbers, and the hardware.
        published_runs: number of runs behind each published number.
        note: what the text of the paper leaves open.
    """

    title: str
    metrics: Sequence[str]
    rows: tuple[Row, ...]
    published: str = "Wu et al., CVPR 2020, on P100 GPUs"
    published_runs: int = 1
    note: str = ""


def _experiment(content: dict[str, Any]) -> Experiment:
    common = {key: content.pop(key) for key in ("recipe", "baseline", "start") if key in content}
    lines = [common | line for line in content.pop("rows")]
    rows = dict[str, Row]()
    for line in sorted(lines, key=lambda line: "as_long_as" in line):
        numbers = {name: line.pop(name) for name in ("top1", "top5", "map") if name in line}
        metrics = {
            k: Mean(*v) if isinstance(v, list) else Mean(v, None) for k, v in numbers.items()
        }
        values = {"baseline": line["recipe"], **line, "metrics": metrics}
        values["as_long_as"] = rows.get(line.get("as_long_as", ""))
        values["overrides"] = as_overrides(line.get("overrides", {}))
        rows[line["label"]] = Row(**values)
    content["rows"] = tuple(rows[line["label"]] for line in lines)
    return Experiment(**content)


_PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
del _PUBLISHED["curves"]  # it only defines YAML anchors for the figures

EXPERIMENTS: Mapping[str, Experiment] = {
    name: _experiment(content) for name, content in _PUBLISHED.items()
}
"""Experiments by their name on the command line."""

PAPER = tuple(name for name in EXPERIMENTS if name.startswith(("table", "figure")))
"""Names of the tables and figures of the multigrid paper."""


def paper_arms(
    rows: Iterable[Row],
    data: Mapping[str, str] | None = None,
    weights: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, Arm]:
    """Return the arms of some rows and their baselines, by `Row.folder`.

    Args:
        rows: the rows.
        data: folders of the data sets, by name.
        weights: checkpoints to start from, by `Row.start`.
        overrides: KEY VALUE pairs for every arm.

    Raises:
        ValueError: A file does not exist, or a recipe cannot be trained. The message names it.
    """

    def make(row: Row) -> Arm:
        path = CONFIGS / row.recipe
        plain = load_recipe(path)
        keys = dict[str, object]()
        if folder := (data or {}).get(plain.train.dataset.lower()):
            keys["DATA.PATH_TO_DATA_DIR"] = folder
        if row.start != SCRATCH:
            # The path in the recipe is a placeholder for a file of the user.
            file = (weights or {}).get(row.start) or ""
            keys["TRAIN.CHECKPOINT_FILE_PATH"] = file
            keys["TRAIN.CHECKPOINT_TYPE"] = "caffe2" if file.endswith(".pkl") else "pytorch"
        pairs = row.overrides + as_overrides(keys) + _fitting(tuple(overrides), plain, path)
        arm = make_arm(row.folder, row.folder, path, pairs)
        factor = row.factor
        if row.as_long_as is not None:
            factor = _nominal_iterations(make(row.as_long_as)) / _nominal_iterations(arm)
        if factor is not None:
            lengths: Mapping[str, object] = {"MULTIGRID.EPOCH_FACTOR": factor}
            if not arm.recipe.uses_multigrid:
                lengths = scaled_lengths(arm.recipe, factor)
            arm = make_arm(row.folder, row.folder, path, pairs + as_overrides(lengths))
        return replace(arm, baseline=row.reference.folder, open_keys=_open_keys(arm.recipe, row))

    trainings = {each.folder: each for row in rows for each in (row.reference, row)}
    return {folder: make(row) for folder, row in trainings.items()}


def _nominal_iterations(arm: Arm) -> int:
    """Return the iterations on the number of videos that the recipe was written for.

    The epochs that follow from them must not depend on the list at hand. Otherwise, a finished run
    would not match its recipe on a machine without the data set.
    """
    num_videos = arm.recipe.data.num_train_videos or arm.schedule.num_videos
    return schedule_of(arm.recipe, num_videos).iterations


_REFERENCE = "SOLVER.REFERENCE_WORLD_SIZE"


def _fitting(overrides: tuple[str, ...], plain: Recipe, path: Path) -> tuple[str, ...]:
    """Return the user's pairs, without the scaling if it is for another number of GPUs.

    A recipe for one GPU, for example, is not scaled from 8 GPUs.
    """
    keys = dict(zip(overrides[::2], overrides[1::2], strict=False))
    reference = keys.pop(_REFERENCE, "0")
    if reference in ("0", str(plain.num_gpus)):
        return overrides
    logger.warning(
        "%s is for NUM_GPUS %d, not for the %s of %s. It is not scaled.",
        *(path.name, plain.num_gpus, reference, _REFERENCE),
    )
    keys.pop("NUM_GPUS", None)
    return as_overrides(keys)


def _open_keys(recipe: Recipe, row: Row) -> frozenset[str]:
    """Return the keys of inputs that are not given, because a run may have read them anywhere."""
    keys = set[str]()
    if not recipe.data.path_to_data_dir:
        keys |= {"DATA.PATH_TO_DATA_DIR", "DATA.PATH_PREFIX"}
    if row.start != SCRATCH and not recipe.train.checkpoint_file_path:
        keys |= {"TRAIN.CHECKPOINT_FILE_PATH", "TRAIN.CHECKPOINT_TYPE"}
    return frozenset(keys)
