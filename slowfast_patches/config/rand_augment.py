"""Parsing of AUG.AA_TYPE, which keeps the form of PySlowFast's later releases."""

from __future__ import annotations

import re

_PART = re.compile(r"(mstd|m|n|inc)(\d{1,4}(?:\.\d{1,8})?)")
_MOST_OPERATIONS = 10


def parse_rand_augment(text: str) -> tuple[int, float, float]:
    """Parse a description of RandAugment such as "rand-m7-n4-mstd0.5-inc1".

    Args:
        text: "rand", then "-" and a number after each of: n, the number of operations per clip
            (default 2); m, their magnitude from 0 to 10 (default 9); mstd, the standard deviation
            of the magnitude (default 0). "inc1" means that operations get stronger with the
            magnitude, which is always the case here.

    Returns:
        The number of operations, the magnitude and its standard deviation.

    Raises:
        ValueError: The text has another form.
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
    """Return whether `parse_rand_augment` accepts a text, or the text is empty."""
    try:
        return not text or bool(parse_rand_augment(text))
    except ValueError:
        return False
