"""What checkpoints cost a training, which writes them in the background.

    python benchmarks/checkpoint.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml \\
        --output runs/checkpoint DATA.PATH_TO_DATA_DIR runs/demo/data

Trains the recipe, saving after every epoch, without evaluation but at the ends of phases. A
checkpoint costs the seconds that the training stands still, as its log says, and the seconds by
which the iterations during its writing take longer than the median of the same shape in the same
phase. The share is that of as many checkpoints as the recipe has by itself, at its
CHECKPOINT_PERIOD, in its training time; and what it were if the training waited for the file.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from common import new_parser, provenance, write_result
from tabulate import tabulate

from slowfast_patches.config import load_recipe
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.plan.plan import dataset_size
from slowfast_patches.train.run import run
from slowfast_patches.train.state import checkpoint_iterations
from slowfast_patches.utils.command_line import tool

QUIET = ["LOG_PERIOD", 1, "TEST.ENABLE", False, "BN.USE_PRECISE_STATS", False]
QUIET += ["MULTIGRID.EVAL_FREQ", 1, "TRAIN.CHECKPOINT_PERIOD", 1, "TRAIN.AUTO_RESUME", False]
SAVED = re.compile(
    r"checkpoint after iteration (\d+): .* \(held up the training for ([\d.]+) s, "
    r"written in ([\d.]+) s\)"
)
FEWEST = 3
"""Undisturbed iterations of a shape in a phase that make a median."""


@tool()
def main(argv: Sequence[str] | None = None) -> int:
    """Train, measure, print and write; returns the exit status."""
    parser = new_parser(__doc__, rounds=None, folder="runs/checkpoint")
    parser.add_argument("--cfg", required=True, metavar="FILE")
    args = parser.parse_intermixed_args(argv)
    if args.output.exists():
        parser.error(f"{args.output} is there already")
    run(load_recipe(args.cfg, [*args.overrides, *map(str, [*QUIET, "OUTPUT_DIR", args.output])]))
    recipe = load_recipe(args.cfg, args.overrides)
    schedule = schedule_of(recipe, dataset_size(recipe, None))
    default = len(checkpoint_iterations(recipe, schedule))
    rows = measure(args.output, default)
    print(tabulate(rows, headers="keys", floatfmt=".3f"))
    result = {"checkpoints": rows, "cfg": args.cfg, "overrides": args.overrides, **provenance()}
    write_result(args.output / "checkpoint.json", "checkpoint.py", argv, result)
    return 0


def _iterations(folder: Path) -> list[dict[str, Any]]:
    """The iterations of a run with LOG_PERIOD 1, with the seconds that each "took"."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    steps = [line for line in lines if line["type"] == "train"]
    for before, step in pairwise([{"seconds": 0.0}, *steps]):
        step["took"] = step["seconds"] - before["seconds"]
    return steps


def measure(folder: Path, default: int) -> list[dict[str, Any]]:
    """What the checkpoints of a run cost it, and what `default` of them would."""
    log = (folder / "train.log").read_text(encoding="utf-8")
    saved = [(int(number), float(held), float(took)) for number, held, took in SAVED.findall(log)]
    steps = _iterations(folder)
    beside = [_beside(steps, number, written) for number, _, written in saved]
    usual = defaultdict[Any, list[float]](list)
    for number, step in enumerate(steps):
        if not any(number in each for each in beside):
            usual[step["phase"], *step["shape"]].append(step["took"])
    slower = [
        steps[n]["took"] - statistics.median(usual[kind])
        for n in chain.from_iterable(beside)
        if len(usual[kind := (steps[n]["phase"], *steps[n]["shape"])]) >= FEWEST
    ]
    held, written = (statistics.mean(times) for times in list(zip(*saved, strict=True))[1:])
    extra, training = sum(slower) / len(saved), sum(step["took"] for step in steps)
    known = {
        "checkpoints": len(saved),
        "held seconds": held,
        "written seconds": written,
        "training seconds": training,
        "at default period": default,
    }
    ways = {"in the background": held + extra, "the training waits": held + written}
    return [
        {"writing": way, **known, "share %": 100 * default * cost / training}
        for way, cost in ways.items()
    ]


def _beside(steps: Sequence[dict[str, Any]], done: int, seconds: float) -> range:
    """The numbers of the iterations in the seconds after `done` of them."""
    last = done
    while last < len(steps) and seconds > 0:
        seconds -= steps[last]["took"]
        last += 1
    return range(done, last)


if __name__ == "__main__":
    sys.exit(main())
