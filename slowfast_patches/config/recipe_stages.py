"""MULTIGRID.STAGES: a schedule as a table, one row for each stage."""

from __future__ import annotations

from collections.abc import Sequence

from multigrid import Stage
from multigrid.stage_rows import Row, is_list, stages_from_rows
from slowfast_patches.config.recipe import Recipe


def stages_of(recipe: Recipe) -> tuple[Stage, ...]:
    """Return the stages of MULTIGRID.STAGES, with shapes over all machines.

    Raises:
        ValueError: A cycle is on as well, or the last stage does not end at SOLVER.MAX_EPOCH.
    """
    return stages_from_rows(
        recipe.multigrid.stages,
        machines=recipe.num_shards,
        bn_group_size=recipe.bn_group_size if recipe.model.has_batchnorm else None,
        end=recipe.solver.max_epoch,
        has_cycles=recipe.has_cycles,
    )


def scaled_rows(rows: Sequence[Row], *, epochs: float = 1.0, rate: float = 1.0) -> list[Row]:
    """Return the rows of MULTIGRID.STAGES with scaled epochs and learning rates."""
    return [_scaled(row, epochs, rate) for row in rows]


def _scaled(row: Row, epochs: float, rate: float) -> Row:
    scaled = {**row, "until": round(row["until"] * epochs, 6)}
    if (given := row.get("rate")) is not None:
        scaled["rate"] = [x * rate for x in given] if is_list(given) else given * rate
    return scaled
