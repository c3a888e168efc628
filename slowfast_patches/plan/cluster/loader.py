"""How many clips a node's loaders read in a second: one number, or benchmarks/loader.py's."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from slowfast_patches.plan.cluster.times import ClipRate

__all__ = ["WAYS", "clip_rate"]

WAYS = ("files", "prepared")
"""What a loader reads: videos as they are, or those of tools/prepare_data.py."""


def clip_rate(given: str, way: str | None = None, cores: int | None = None) -> ClipRate:
    """The speed of one node's loaders.

    Args:
        given: clips a second at any shape, or the path of a JSON file of benchmarks/loader.py,
            which has those of one core for each shape.
        way: which of the file's columns, one of WAYS.
        cores: how many cores of a node read.

    Raises:
        ValueError: not a number above 0, or no such file; a shape that the file does not have
            raises it when it is asked for.
    """
    try:
        number = float(given)
    except ValueError:
        return _measured(Path(given), way, cores)
    if way is not None or cores is not None:
        raise ValueError(
            f"--loader-way and --loader-cores belong to a file, and --loader {given} is a number: "
            "leave them out"
        )
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"--loader is above 0 clips a second of a node, not {given}")
    return lambda frames, crop: number


def _measured(path: Path, way: str | None, cores: int | None) -> ClipRate:
    if not path.is_file():
        raise ValueError(f"--loader {path} is neither a number of clips a second nor a file")
    if way is None or cores is None:
        raise ValueError(
            f"--loader {path} has the speeds of one core: give --loader-cores N, how many of a "
            f"node read, and --loader-way {' or '.join(WAYS)}"
        )
    if cores < 1:
        raise ValueError(f"--loader-cores is 1 or more, not {cores}")
    rates = _read(path, way)

    def rate(frames: int, crop: int) -> float:
        if (frames, crop) not in rates:
            known = ", ".join(f"{f}×{c}²" for f, c in sorted(rates))
            raise ValueError(f"{path} has no clips of {frames}×{crop}²; it has {known}")
        return cores * rates[frames, crop]

    return rate


def _read(path: Path, way: str) -> dict[tuple[int, int], float]:
    """Clips a second of one core for each (frames, crop)."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        return {
            (row["frames"], row["crop"]): float(row["clips_per_second"][way]["median"])
            for row in content["shapes"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no file of benchmarks/loader.py with clips_per_second of {way!r} at its "
            f"shapes: {error!r}"
        ) from error
