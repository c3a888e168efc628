"""The paper's tables and figures: what is trained for each, and what was published of it.

They are data: published.yaml. A training that appears in several tables is one training.
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

__all__ = ["EXPERIMENTS", "PAPER", "SCRATCH", "Experiment", "Row", "paper_arms"]

logger = logging.getLogger(__name__)

SCRATCH = "scratch"


@dataclass(frozen=True)
class Row:
    """A line of a table, or a point of a figure: a recipe at some length, and what the paper gives.

    recipe, baseline: files, relative to configs/; the path of a user's own recipe is absolute.
    start: the weights that it starts from: `SCRATCH`, "imagenet" or "kinetics".
    factor: epochs as a multiple of the baseline's; None leaves the recipe's own.
    as_long_as: train for as many iterations as this row, instead of `factor`.
    overrides: further KEY VALUE pairs, with `variant` as their name.
    metrics, speed_up: as published, metrics in per cent; `source` says where.
    curve: of a figure. published_only: nothing is trained for it.
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
        """The name of its arm and its runs' folder; the same training has the same one in every
        table."""
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
        """The training that its speed-up is relative to."""
        return Row("baseline", self.baseline, self.baseline, self.start)


@dataclass(frozen=True)
class Experiment:
    """A table or a figure. `note` says what the paper's text at hand leaves open, `published` where
    its numbers are from and on what they were measured."""

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
del _PUBLISHED["curves"]  # which rows of the figures repeat

EXPERIMENTS: Mapping[str, Experiment] = {
    name: _experiment(content) for name, content in _PUBLISHED.items()
}
"""By the name that the command line takes."""

PAPER = tuple(name for name in EXPERIMENTS if name.startswith(("table", "figure")))
"""The names of the paper's own."""


def paper_arms(
    rows: Iterable[Row],
    data: Mapping[str, str] | None = None,
    weights: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, Arm]:
    """The arms of some rows and their baselines by `Row.folder`, which is their name.

    Args:
        data: folders of the data sets, by name.
        weights: checkpoints to start from, by the name of the start.
        overrides: KEY VALUE pairs for every arm.

    Raises:
        ValueError: no such file, or a recipe that cannot be trained; names it.
    """

    def make(row: Row) -> Arm:
        path = CONFIGS / row.recipe
        plain = load_recipe(path)
        keys = dict[str, object]()
        if folder := (data or {}).get(plain.train.dataset.lower()):
            keys["DATA.PATH_TO_DATA_DIR"] = folder
        if row.start != SCRATCH:
            # The recipe's own path stands for a file that the user has to give.
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
    """Iterations on as many videos as the recipe was made for: its length in epochs must not depend
    on whether the data set is at hand, or its results could not be told from others'."""
    num_videos = arm.recipe.data.num_train_videos or arm.schedule.num_videos
    return schedule_of(arm.recipe, num_videos).iterations


_REFERENCE = "SOLVER.REFERENCE_WORLD_SIZE"


def _fitting(overrides: tuple[str, ...], plain: Recipe, path: Path) -> tuple[str, ...]:
    """The user's pairs without a scaling that is not for this recipe: one from 8 GPUs says nothing
    of a recipe for one."""
    keys = dict(zip(overrides[::2], overrides[1::2], strict=False))
    reference = keys.pop(_REFERENCE, "0")
    if reference in ("0", str(plain.num_gpus)):
        return overrides
    logger.warning(
        "%s is for NUM_GPUS %d, not for the %s of %s: it is left as it is",
        *(path.name, plain.num_gpus, reference, _REFERENCE),
    )
    keys.pop("NUM_GPUS", None)
    return as_overrides(keys)


def _open_keys(recipe: Recipe, row: Row) -> frozenset[str]:
    """Keys of inputs that are not given: a finished run may have read them from anywhere."""
    keys = set[str]()
    if not recipe.data.path_to_data_dir:
        keys |= {"DATA.PATH_TO_DATA_DIR", "DATA.PATH_PREFIX"}
    if row.start != SCRATCH and not recipe.train.checkpoint_file_path:
        keys |= {"TRAIN.CHECKPOINT_FILE_PATH", "TRAIN.CHECKPOINT_TYPE"}
    return frozenset(keys)
