"""What an architecture takes: entries for each pathway, frames, channels to shift."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from slowfast_patches.config.keys import PER_PATHWAY
from slowfast_patches.config.recipe import Recipe, default_recipe
from slowfast_patches.utils.report import format_list

__all__ = ["check_architecture", "check_frames"]

logger = logging.getLogger(__name__)


def check_architecture(recipe: Recipe) -> None:
    """Refuse keys that do not fit MODEL.ARCH.

    Raises:
        ValueError: which, and what to write.
    """
    _check_pathways(recipe)
    _check_shift(recipe)
    cycle = recipe.multigrid.long_cycle_factors if recipe.multigrid.long_cycle else [[1.0, 1.0]]
    factors = [time for time, _ in cycle]
    check_frames(recipe.model.arch, recipe.data.num_frames, recipe.slowfast.alpha, factors)


def check_frames(
    arch: str, frames: int, alpha: int, time_factors: Sequence[float] = (1.0,)
) -> None:
    """Refuse frames that an architecture cannot take at every shape of a schedule.

    The slow pathway has frames // alpha frames and receives ceil(frames / alpha) from the fast
    one, so alpha must divide the frames. C2D and I3D halve the frames once, TSM shifts them.

    Args:
        arch: MODEL.ARCH.
        frames: the baseline's frames.
        alpha: SLOWFAST.ALPHA, read for "slowfast" only.
        time_factors: the frames of the schedule's shapes, as fractions of the baseline's.

    Raises:
        ValueError: frames that do not fit, and which alpha or frames would.
    """

    def fits(frames: int, alpha: int) -> bool:
        return all(_takes(arch, round(frames * factor), alpha) for factor in time_factors)

    if fits(frames, alpha):
        return
    counts = sorted({round(frames * factor) for factor in time_factors})
    enough = next((n for n in range(frames, 65 * frames) if fits(n, alpha)), None)
    ways = [f"DATA.NUM_FRAMES {enough}"] if enough else []
    text = f"DATA.NUM_FRAMES {frames} gives clips of {format_list(counts)} frames, "
    if arch == "slowfast":
        alphas = [a for a in range(1, max(alpha, frames) + 1) if fits(frames, a)]
        ways += [f"SLOWFAST.ALPHA {format_list(alphas, 'or')}"] if alphas else []
        text += f"and SLOWFAST.ALPHA {alpha} must divide each, to feed the slow pathway"
    else:
        text += f"and {arch} needs {_least_frames(arch)} at least"
    raise ValueError(f"{text}; {format_list(ways, 'or') or 'other factors'} would work")


def _takes(arch: str, frames: int, alpha: int) -> bool:
    if arch == "slowfast":
        return frames >= alpha and frames % alpha == 0
    return frames >= _least_frames(arch)


def _least_frames(arch: str) -> int:
    return 2 if arch in ("c2d", "i3d", "tsm") else 1


def _check_pathways(recipe: Recipe) -> None:
    pathways = 2 if recipe.model.arch == "slowfast" else 1
    wrong: dict[str, list[Any]] = {}
    right: dict[str, list[Any]] = {}
    for key in PER_PATHWAY:
        stages = [list(stage) for stage in recipe[key]]
        # What NONLOCAL.POOL has for a second pathway, as by default, is not read.
        spare = key == "NONLOCAL.POOL"
        if any(len(s) < pathways or (len(s) > pathways and not spare) for s in stages):
            wrong[key] = stages
            right[key] = [(stage * pathways)[:pathways] for stage in stages]
    if len(recipe.data.input_channel_num) != pathways:
        wrong["DATA.INPUT_CHANNEL_NUM"] = list(recipe.data.input_channel_num)
        right["DATA.INPUT_CHANNEL_NUM"] = [3] * pathways
    if wrong:
        raise ValueError(
            f"MODEL.ARCH {recipe.model.arch} takes {pathways} in each stage, one for each pathway, "
            f"unlike {_pairs(wrong)}; leave these keys out, or write {_pairs(right)}"
        )


def _pairs(values: dict[str, list[Any]]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _check_shift(recipe: Recipe) -> None:
    """The first block of TSM sees the fewest channels, RESNET.WIDTH_PER_GROUP."""
    share, width = recipe.tsm.shift_div, recipe.resnet.width_per_group
    if share != 0 and share < 2:
        raise ValueError(
            f"TSM.SHIFT_DIV must be 2 or more, for 1/SHIFT_DIV of the channels each way, or 0 for "
            f"no shift, not {share}"
        )
    if recipe.model.arch != "tsm" and share != default_recipe().tsm.shift_div:
        logger.warning(
            "TSM.SHIFT_DIV %d has no effect with MODEL.ARCH %s; write tsm, or leave it out",
            *(share, recipe.model.arch),
        )
    if recipe.model.arch == "tsm" and share > width:
        raise ValueError(
            f"TSM.SHIFT_DIV {share} leaves nothing to shift of the {width} channels of the first "
            f"block (RESNET.WIDTH_PER_GROUP); write {width} or less, or 0 for no shift"
        )
