"""Recipes at several lengths: what is trained for a curve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slowfast_patches.config.scale import as_overrides, scaled_lengths
from slowfast_patches.study.arms import Arm, make_arm
from slowfast_patches.study.experiments import Experiment, Training

__all__ = ["Family", "at_lengths", "check_lengths", "families_of", "in_order"]


@dataclass(frozen=True)
class Family:
    """A recipe's arms by their lengths, which rise, as multiples of the recipe's own."""

    label: str
    arms: Mapping[float, Arm]


def at_lengths(arm: Arm, lengths: Sequence[float]) -> Family:
    """The arm with all its lengths in epochs multiplied, each in turn.

    At 1 it is the arm itself, so that its runs are those of a comparison without lengths; the
    others are called "NAME at 0.25×" and kept in NAME_x0.25. A multigrid arm's EPOCH_FACTOR is
    relative and stays.

    Raises:
        ValueError: lengths that are none (`check_lengths`), or one at which the arm cannot be
            trained; names it.
    """
    check_lengths(lengths)
    return Family(arm.name, {length: _lengthened(arm, length) for length in sorted(lengths)})


def check_lengths(lengths: Sequence[float]) -> None:
    """Raise ValueError for lengths that are no finite numbers above 0, or the same."""
    for length in lengths:
        if not 0 < length < math.inf:
            raise ValueError(
                f"--lengths are multiples of the recipes' own lengths, above 0, not {length:g}"
            )
    names = [f"{length:g}" for length in lengths]
    if len(set(names)) < len(names):
        raise ValueError(f"--lengths has one twice: {' '.join(names)}; give each once")


def _lengthened(arm: Arm, length: float) -> Arm:
    if length == 1:
        return arm
    overrides = (*arm.overrides, *as_overrides(scaled_lengths(arm.recipe, length)))
    name, folder = f"{arm.name} at {length:g}×", f"{arm.folder}_x{length:g}"
    try:
        return make_arm(name, folder, arm.cfg_file, overrides)
    except ValueError as error:  # of the length, since the arm itself could be made
        raise ValueError(f"{error}; or leave {length:g} out of --lengths") from error


def families_of(experiment: Experiment, arms: Mapping[Training, Arm]) -> list[Family]:
    """The recipes of an experiment that has lengths, each at all of them."""
    found = dict[str, dict[float, Arm]]()
    for row in experiment.rows:
        found.setdefault(row.curve, {})[row.training.length] = arms[row.training]
    return [Family(label, own) for label, own in found.items()]


def in_order(families: Sequence[Family]) -> list[Arm]:
    """All arms, short ones first: curves begin to show long before the longest run is done."""
    lengths = sorted({length for family in families for length in family.arms})
    return [f.arms[length] for length in lengths for f in families if length in f.arms]
