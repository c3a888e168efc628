"""What a key is besides its default: its help, its check, and what it may do to a run."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from slowfast_patches.utils.tables import format_list


class Check(NamedTuple):
    """Which values a key can have, and in words, which: "KEY must be `wanted`".

    texts: texts that it takes in the place of a value such as `like`.
    """

    passes: Callable[[Any], bool]
    wanted: str
    texts: tuple[str, ...] = ()
    like: object = None


class Key(NamedTuple):
    """The metadata of a recipe's field.

    help: what it is; empty for keys that are the host's alone.
    may_differ: whether a run may be continued with another value.
    speed: whether step times are only of recipes that have the same value.
    switch: whether True only makes iterations faster, which is a kind of `speed`.
    """

    help: str = ""
    check: Check | None = None
    may_differ: bool = False
    speed: bool = False
    switch: bool = False


def key(default: Any, help: str, check: Check | None = None, **flags: bool) -> Any:
    """A field of a section with the metadata of its key; the flags are `Key`'s."""
    metadata = {"key": Key(help, check, **flags)}
    return dataclasses.field(default_factory=lambda: default, metadata=metadata)


def one_of(*choices: object) -> Check:
    return Check(lambda value: value in choices, format_list(choices, "or"))


def above_zero_to(most: int) -> Check:
    return Check(lambda value: 0 < value <= most, f"above 0, and {most:,} at most")


def from_to(least: int, most: int) -> Check:
    return Check(lambda value: least <= value <= most, f"{least} to {most:,}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _are_factors(values: Any) -> bool:
    return isinstance(values, list) and all(_is_number(x) and 0 < x <= 1 for x in values)


def _is_long_cycle(values: list[Any]) -> bool:
    return values[-1:] == [[1, 1]] and all(_are_factors(x) and len(x) == 2 for x in values)


AT_LEAST_ONE = Check(lambda value: value >= 1, "1 or more")
SIZE = from_to(1, 2**16)
FROM_ZERO = Check(lambda value: value >= 0, "0 or more")
ABOVE_ZERO = Check(lambda value: value > 0, "above 0")
BELOW_ONE = Check(lambda value: 0 <= value < 1, "in [0, 1), where 0 is off")
RATIO = Check(lambda value: 0 < value <= 1, "in (0, 1]")
PART = Check(lambda value: 0 <= value <= 1, "in [0, 1]")
AUTO_OR_COUNT = Check(
    lambda value: value == "auto" or value >= 0, "0 or more, or auto", ("auto",), like=0
)
AUTO_OR_SWITCH = Check(
    lambda value: value in (False, True, "auto"), "True, False or auto", ("auto",), like=False
)
_MODES = ("default", "reduce-overhead", "max-autotune")
COMPILE = one_of(False, True, *_MODES)._replace(texts=_MODES, like=False)
NUMBERS = Check(lambda values: all(map(_is_number, values)), "a list of finite numbers")
FACTORS = Check(lambda x: len(x) > 0 and _are_factors(x), "a list of factors in (0, 1]")
LONG_CYCLE = Check(_is_long_cycle, "a list of [frames, crop], factors in (0, 1], the last [1, 1]")
SHIFT = Check(lambda value: value == 0 or value >= 2, "2 or more, or 0 for no shift")
CROP = Check(lambda value: value >= 32, "32 pixels or more")
CSV = Check(lambda value: not value or value.endswith(".csv"), "a name that ends in .csv")
WEIGHTS = one_of("pytorch", "caffe2")
