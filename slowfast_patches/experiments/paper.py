"""Tables and figures of the paper: the trainings to run, and the published numbers.

Both are read by published.py. A training that appears in several tables runs only once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slowfast_patches.config import load_recipe
from slowfast_patches.config.load_recipe import CONFIGS
from slowfast_patches.config.scale import as_overrides
from slowfast_patches.experiments.published import PUBLISHED
from slowfast_patches.experiments.variants import Seen, Variant, make_variant, with_length
from slowfast_patches.plan.run_identity import without_weights
from slowfast_patches.utils.tables import Mean

SCRATCH = "scratch"
"""Value of `Row.start` for training from random weights."""


@dataclass(frozen=True)
class Row:
    """Row of a table, or point of a figure.

    Attributes:
        label: Name of the row in its table.
        recipe: Config file, relative to configs/.
        baseline: Config file of the baseline, relative to configs/.
        start: Initial weights: `SCRATCH`, "imagenet" or "kinetics".
        length: Length of the training as a multiple of the recipe's own length (SOLVER.LENGTH).
        overrides: Alternating config keys and values that override the config file.
        variant: Name of the overrides, which becomes part of the folder name.
        metrics: Maps names of metrics to published values in per cent.
        speed_up: Published speed-up.
        source: Table or section of the paper that has the published numbers.
        curve: Name of the curve that the point belongs to, in a figure.
        published_only: Whether the row only has published numbers and is not trained.
    """

    label: str
    recipe: str
    baseline: str
    start: str = SCRATCH
    length: float = 1.0
    overrides: tuple[str, ...] = ()
    variant: str = ""
    metrics: Mapping[str, Mean] = field(default_factory=dict)
    speed_up: float | None = None
    source: str = ""
    curve: str = ""
    published_only: bool = False

    @property
    def folder(self) -> str:
        """Name of the variant and of its folder. Rows with the same training have the same name."""
        name = self.recipe.removesuffix(".yaml")
        name += f"_{self.variant}" if self.variant else ""
        return name if self.length == 1 else f"{name}_x{self.length:g}"

    @property
    def reference(self) -> Row:
        """Row of the training that the speed-up is relative to."""
        return Row("baseline", self.baseline, self.baseline, self.start)


@dataclass(frozen=True)
class PaperTable:
    """Table or figure of the paper.

    Attributes:
        title: Heading of the report.
        metrics: Names of the metrics.
        rows: Rows of the table, or points of the figure.
        published: Source of the published numbers, and the hardware used there.
        published_runs: Number of runs that each published number is averaged over.
        note: Remarks for the report, such as choices that the paper leaves open.
    """

    title: str
    metrics: Sequence[str]
    rows: tuple[Row, ...]
    published: str = "Wu et al., CVPR 2020, on P100 GPUs"
    published_runs: int = 1
    note: str = ""


def _paper_table(content: dict[str, Any]) -> PaperTable:
    common = {key: content.pop(key) for key in ("recipe", "baseline", "start") if key in content}
    rows = tuple(_row(common | line) for line in content.pop("rows"))
    return PaperTable(**content, rows=rows)


def _row(line: dict[str, Any]) -> Row:
    numbers: dict[str, Any] = {
        name: line.pop(name) for name in ("top1", "top5", "map") if name in line
    }
    metrics = {k: Mean(*v) if isinstance(v, list) else Mean(v, None) for k, v in numbers.items()}
    overrides = as_overrides(line.pop("overrides", {}))
    return Row(**{"baseline": line["recipe"]} | line, metrics=metrics, overrides=overrides)


PAPER_TABLES: Mapping[str, PaperTable] = {
    name: _paper_table(content) for name, content in PUBLISHED.items()
}
"""Maps the name on the command line, such as "table5", to the table."""

PAPER = tuple(name for name in PAPER_TABLES if name.startswith(("table", "figure")))
"""Names of the tables and figures of the multigrid paper."""


def paper_variants(
    rows: Collection[Row],
    data: Mapping[str, str] | None = None,
    weights: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, Variant]:
    """Build the variants that train some rows and the baselines of these rows.

    Args:
        rows: Rows to train.
        data: Maps the name of each data set, such as "kinetics", to the folder of its lists.
        weights: Maps values of `Row.start` to checkpoint files.
        overrides: Alternating config keys and values for every variant.

    Returns:
        Maps `Row.folder` to the variant.

    Raises:
        ValueError: A file does not exist, or a recipe cannot be trained. The message names the file
            or the variant.
    """

    def make(row: Row) -> Variant:
        path = CONFIGS / row.recipe
        plain = load_recipe(path)
        keys = dict[str, object]()
        if folder := (data or {}).get(plain.train.dataset.lower()):
            keys["DATA.PATH_TO_DATA_DIR"] = folder
        if row.start != SCRATCH:
            # Replace the placeholder path of the recipe with the user's file.
            keys["TRAIN.CHECKPOINT_FILE_PATH"] = (weights or {}).get(row.start) or ""
        pairs = row.overrides + as_overrides(keys) + tuple(overrides)
        variant = with_length(make_variant(row.folder, path, pairs, seen), row.length, seen)
        if row.start != SCRATCH and not (weights or {}).get(row.start):
            variant = replace(variant, identity=without_weights(variant.identity))
        return replace(variant, name=row.folder, label=row.curve, baseline=row.reference.folder)

    seen: Seen = {}
    trainings = {each.folder: each for each in [*(row.reference for row in rows), *rows]}
    return {folder: make(row) for folder, row in trainings.items()}
