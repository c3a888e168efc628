"""Format numbers, lists and tables as text for terminals and Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tabulate import tabulate

_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z")


class Mean(NamedTuple):
    """Mean and standard deviation of some values.

    Attributes:
        mean: Mean.
        std: Sample standard deviation (divisor n − 1), or None for a single value.
    """

    mean: float
    std: float | None

    def format(self, digits: int = 1, std_digits: int | None = None) -> str:
        """Format as `76.4 ± 0.2`, or `76.4` for a single value.

        Args:
            digits: Number of decimals.
            std_digits: Number of decimals of the standard deviation. None means `digits`.
        """
        spread = "" if self.std is None else f" ± {self.std:.{std_digits or digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


def mean_of(values: Iterable[float]) -> Mean | None:
    """Return the mean and standard deviation of values, or None if there are no values."""
    numbers = list(values)
    if not numbers:
        return None
    spread = statistics.stdev(numbers) if len(numbers) > 1 else None
    return Mean(statistics.fmean(numbers), spread)


def format_count(value: float) -> str:
    """Format a count, such as `112,000`. Format fractions below 100 with three digits: `12.3`."""
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"


def format_flops(flops: float) -> str:
    """Format a number of FLOPs with three digits and an SI prefix, such as `1.25 EFLOP`."""
    power = min(int(math.log10(flops) // 3), len(_PREFIXES) - 1) if flops >= 1 else 0
    return f"{format_count(flops / 1000**power)} {_PREFIXES[power]}FLOP"


def shorten_list(items: Sequence[object], named: int = 3) -> str:
    """Format the first `named` items and the number of the others: "a, b, c and 7 more"."""
    more = len(items) - named
    return format_list([*items[:named], f"{more} more"] if more > 0 else items)


def format_list(items: Iterable[object], word: str = "and") -> str:
    """Join items with commas and a final `word`, as in "4, 8 and 16"."""
    *rest, last = [str(item) for item in items] or [""]
    return f"{', '.join(rest)} {word} {last}" if rest else last


def format_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    markdown: bool = False,
    left: int = 1,
) -> str:
    """Format a table as text.

    Args:
        headers: Header of each column. In Markdown, line breaks in headers become spaces.
        rows: Texts of the cells of each row.
        markdown: Whether to write a Markdown table.
        left: Number of left-aligned columns. The remaining columns are right-aligned.
    """
    if markdown:
        headers = [header.replace("\n", " ") for header in headers]
    align = ["left"] * left + ["right"] * (len(headers) - left)
    table: str = tabulate(
        rows,
        headers=headers,
        tablefmt="github" if markdown else "simple",
        colalign=align if rows else None,
        disable_numparse=True,
    )
    return table
