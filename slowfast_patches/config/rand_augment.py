"""Parsing of AUG.AA_TYPE, which has the same format as in later PySlowFast releases."""

from __future__ import annotations

import re

_PART = re.compile(r"(mstd|m|n|inc)(\d{1,4}(?:\.\d{1,8})?)")
_MOST_OPERATIONS = 10


def parse_rand_augment(text: str) -> tuple[int, float, float]:
    """Parse a description of RandAugment such as "rand-m7-n4-mstd0.5-inc1".

    Args:
        text: "rand", followed by options that start with "-" and end with a number:
            n is the number of operations per clip (default 2).
            m is the magnitude of the operations, from 0 to 10 (default 9).
            mstd is the standard deviation of the magnitude (default 0).
            inc must be 1: the effect of an operation always increases with the magnitude.

    Returns:
        The number of operations, the magnitude, and the standard deviation of the magnitude.

    Raises:
        ValueError: The text does not have this format.
    """
    name, *parts = text.split("-")
    values = {"n": 2.0, "m": 9.0, "mstd": 0.0, "inc": 1.0}
    for part in parts:
        if (found := _PART.fullmatch(part)) is None:
            raise ValueError(text)
        values[found[1]] = float(found[2])
    count = int(values["n"])
    if (
        name != "rand"
        or values["inc"] != 1
        or not 1 <= count == values["n"] <= _MOST_OPERATIONS
        or values["m"] > 10
    ):
        raise ValueError(text)
    return count, values["m"], values["mstd"]


def is_rand_augment(text: str) -> bool:
    """Return whether a text is empty or can be parsed by `parse_rand_augment`."""
    try:
        return not text or bool(parse_rand_augment(text))
    except ValueError:
        return False
