"""What a key is besides its type and default: its help, its check, and what it may do to a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from slowfast_patches.config.rand_augment import is_rand_augment
from slowfast_patches.utils.tables import format_list

CYCLE = "USES_MULTIGRID True"
"""What a key `needs` that has an effect with a long or a short cycle only."""


class Check(NamedTuple):
    """Which values a key can have, and in words, which: "KEY must be `wanted`"."""

    passes: Callable[[Any], bool]
    wanted: str


class Key(NamedTuple):
    """The metadata of a recipe's field.

    help: what it is; empty for keys that are the host's alone.
    may_differ: whether a run may be continued with another value.
    speed: whether step times are only of recipes that have the same value.
    switch: whether True only makes iterations faster, which is a kind of `speed`.
    kind: the type of its values.
    needs: another key and the values of it with which this one has an effect: "MODEL.ARCH tsm".
    """

    help: str = ""
    check: Check | None = None
    may_differ: bool = False
    speed: bool = False
    switch: bool = False
    needs: str = ""
    kind: Any = Any


def key(default: Any, help: str, check: Check | None = None, **flags: Any) -> Any:
    """A field of a section with the metadata of its key; the flags are `Key`'s."""
    metadata = {"key": Key(help, check, **flags)}
    return dataclasses.field(default_factory=lambda: default, metadata=metadata)


def one_of(*choices: object) -> Check:
    return Check(lambda value: value in choices, format_list(choices, "or"))


def above_zero_to(most: int) -> Check:
    return Check(lambda value: 0 < value <= most, f"above 0, and {most:,} at most")


def from_to(least: int, most: int) -> Check:
    return Check(lambda value: least <= value <= most, f"{least} to {most:,}")


def _are_factors(values: tuple[float, ...]) -> bool:
    return all(0 < value <= 1 for value in values)


AT_LEAST_ONE = Check(lambda value: value >= 1, "1 or more")
SIZE = from_to(1, 2**16)
FROM_ZERO = Check(lambda value: value >= 0, "0 or more")
ABOVE_ZERO = Check(lambda value: value > 0, "above 0")
BELOW_ONE = Check(lambda value: 0 <= value < 1, "in [0, 1), where 0 is off")
RATIO = Check(lambda value: 0 < value <= 1, "in (0, 1]")
PART = Check(lambda value: 0 <= value <= 1, "in [0, 1]")
AUTO_OR_COUNT = Check(
    lambda value: value == "auto" or (not isinstance(value, str) and value >= 0),
    "0 or more, or auto",
)
FACTORS = Check(lambda x: bool(x) and _are_factors(x), "a list of factors in (0, 1]")
LONG_CYCLE = Check(
    lambda x: x[-1:] == ((1, 1),) and all(len(f) == 2 and _are_factors(f) for f in x),
    "a list of [frames, crop], factors in (0, 1], the last [1, 1]",
)
SHIFT = Check(lambda value: value == 0 or value >= 2, "2 or more, or 0 for no shift")
CLASS_WEIGHTS = Check(
    lambda x: x == "balanced" or (not isinstance(x, str) and all(weight > 0 for weight in x)),
    "balanced, or a list with a number above 0 for each class, or [] for no weights",
)
CROP = Check(lambda value: value >= 32, "32 pixels or more")
CSV = Check(lambda value: not value or value.endswith(".csv"), "a name that ends in .csv")
RAND_AUGMENT = Check(
    is_rand_augment,
    "rand with -m and a magnitude from 0 to 10, -n and 1 to 10 operations, -mstd and the "
    "magnitude's deviation, such as rand-m7-n4-mstd0.5-inc1, or empty",
)
WEIGHTS = one_of("pytorch", "caffe2")
