"""The text of AUG.AA_TYPE."""

from __future__ import annotations

import re

__all__ = ["is_rand_augment", "parse_rand_augment"]

_PART = re.compile(r"(mstd|m|n|inc)(\d{1,4}(?:\.\d{1,8})?)")
_MOST_OPERATIONS = 10


def parse_rand_augment(text: str) -> tuple[int, float, float]:
    """What "rand-m7-n4-mstd0.5-inc1" asks for: 4 operations a clip, of a magnitude of 7 of 10 with
    a standard deviation of 0.5. Without n it is 2, without m 9, without mstd 0; inc1 says that
    operations get stronger with the magnitude, which they always do here.

    Raises:
        ValueError: it is another text.
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
    """Whether a text can be parsed, or is empty, which is off."""
    try:
        return not text or bool(parse_rand_augment(text))
    except ValueError:
        return False
