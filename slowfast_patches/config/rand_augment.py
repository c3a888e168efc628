"""Parsing of AUG.AA_TYPE, which has the same format as in later PySlowFast releases."""

from __future__ import annotations

import re

_TEXT = re.compile(r"rand(-(mstd|m|n|inc)\d+(\.\d+)?)*")
_OPTION = re.compile(r"-(mstd|m|n|inc)([\d.]+)")


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
    values = {"n": 2.0, "m": 9.0, "mstd": 0.0, "inc": 1.0}
    values |= {name: float(number) for name, number in _OPTION.findall(text)}
    fits = values["n"] in range(1, 11) and values["m"] <= 10 and values["inc"] == 1
    if not (_TEXT.fullmatch(text) and fits):
        raise ValueError(text)
    return int(values["n"]), values["m"], values["mstd"]


def is_rand_augment(text: str) -> bool:
    """Return whether a text is empty or can be parsed by `parse_rand_augment`."""
    try:
        return not text or bool(parse_rand_augment(text))
    except ValueError:
        return False
