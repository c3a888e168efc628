"""Functions shared by the benchmarks: options, interleaved rounds, timing, quartiles and output."""

from __future__ import annotations

import argparse
import datetime
import json
import random
import shlex
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from slowfast_patches.train.step_timer import StepClock, wait_for
from slowfast_patches.utils import command_line
from slowfast_patches.utils.machine import machine, versions
from slowfast_patches.utils.tables import format_table

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")


def new_parser(
    doc: str | None, *, rounds: int, folder: str | None = None, keys: bool = True
) -> argparse.ArgumentParser:
    """Create a parser with the options --rounds and --output, and with config keys.

    Args:
        doc: Description of the program.
        rounds: Default of --rounds.
        folder: Default of --output. If None, --output is an optional JSON file instead of a folder.
        keys: Whether the parser accepts KEY VALUE pairs.
    """
    parser = command_line.command_parser(doc or "")
    text = "number of interleaved measurements of each variant (%(default)s)"
    add = partial(command_line.add_option, parser)
    add("--rounds", "N", text, command_line.at_least_one, rounds)
    if folder is None:
        add("--output", "FILE.json", "also write the result to this file", Path)
    else:
        add("--output", "DIR", "folder for the results (%(default)s)", Path, Path(folder))
    if keys:
        command_line.add_overrides(parser, "config keys to set")
    return parser


def take_turns(
    turns: Mapping[Key, Callable[[], T]],
    rounds: int,
    *,
    warm_up: int = 0,
) -> dict[Key, list[T]]:
    """Call functions in interleaved rounds and collect the results.

    Each round calls every function once, in random order. Other load on the machine therefore
    affects all functions alike, and ratios can be computed within a round.

    Args:
        turns: Maps keys to functions.
        rounds: Number of rounds.
        warm_up: Number of additional rounds at the beginning whose results are discarded.

    Returns:
        Maps each key to the results of the function, one per round.
    """
    results = {key: list[T]() for key in turns}
    for number in range(-warm_up, rounds):
        state = "warming up" if number < 0 else f"round {number + 1} of {rounds}"
        print(state, file=sys.stderr, flush=True)
        for key in random.sample(list(turns), len(turns)):
            value = turns[key]()
            if number >= 0:
                results[key].append(value)
    return results


def quartiles(rounds: Sequence[float]) -> dict[str, Any]:
    """Return the median, the first and third quartile, and the values themselves as a dict."""
    low, median, high = np.quantile(rounds, (0.25, 0.5, 0.75)).tolist()
    return {"median": median, "quartile_1": low, "quartile_3": high, "rounds": list(rounds)}


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, Any]:
    """Return the `quartiles` of the ratios `above` / `below`, computed round by round."""
    return quartiles([a / b for a, b in zip(above, below, strict=True)])


def spread_text(spread: Mapping[str, Any], digits: int = 2, unit: str = "×") -> str:
    """Format the median and the quartiles of a dict from `quartiles`: `1.25× (1.20 to 1.31)`."""
    keys = ("quartile_1", "median", "quartile_3")
    low, median, high = (f"{spread[key]:.{digits}f}" for key in keys)
    return f"{median}{unit} ({low} to {high})"


Column = tuple[str, Callable[[Any], str]]
"""Path of a value in a nested row, such as "seconds|median", and a function that formats the
value."""


def table(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], *, markdown: bool = False
) -> str:
    """Format nested rows as a table. Missing values are shown as –.

    Args:
        rows: Rows, which are nested dicts of plain data.
        columns: Maps the header of each column to the column.
        markdown: Whether to format the table as Markdown.
    """

    def cell(value: Any, path: str, show: Callable[[Any], str]) -> str:
        for key in path.split("|"):
            value = value.get(key) if isinstance(value, Mapping) else None
        return "–" if value is None else show(value)

    cells = [[cell(row, *column) for column in columns.values()] for row in rows]
    return format_table(list(columns), cells, markdown=markdown)


def provenance(device: torch.device = CPU) -> dict[str, Any]:
    """Return the device, the machine, the versions of packages and the date as plain data."""
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else machine()["processor"]
    return {
        "device": {"type": device.type, "name": name},
        "machine": machine(),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write_result(
    path: Path | None, program: str, argv: Sequence[str] | None, result: dict[str, Any]
) -> None:
    """Write a result and the command line to a JSON file. Do nothing if `path` is None.

    Args:
        path: The file to write.
        program: File name of the benchmark, such as "step_time.py".
        argv: Arguments of the benchmark. None means `sys.argv[1:]`.
        result: The result, plain data.
    """
    if path is None:
        return
    command = ["python", f"benchmarks/{program}", *(sys.argv[1:] if argv is None else argv)]
    text = json.dumps({"command": shlex.join(command)} | result, indent=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def seconds_of(action: Callable[[], object], device: torch.device) -> float:
    """Call a function, and return the seconds that its work takes on a device."""
    wait_for(device)
    clock = StepClock(device)
    clock.start()
    action()
    clock.mark("all")
    wait_for(device)
    return clock.read().seconds
