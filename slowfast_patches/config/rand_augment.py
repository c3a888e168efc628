"""Parsing of AUG.AA_TYPE, which has the same format as in later PySlowFast releases."""

from __future__ import annotations

import re

FORMAT = re.compile(r"(rand(-m(10|\d(\.\d+)?)|-n(10|[1-9])|-mstd\d+(\.\d+)?|-inc1)*)?")
"""Matches valid values of AUG.AA_TYPE."""


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
    """
    given = {name: float(number) for name, number in re.findall(r"-(mstd|m|n)([\d.]+)", text)}
    return int(given.get("n", 2)), given.get("m", 9.0), given.get("mstd", 0.0)
