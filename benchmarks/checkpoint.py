"""What checkpoints cost a training, written in the background and written while it waits.

    python benchmarks/checkpoint.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml \\
        --output runs/checkpoint \\
        DATA.PATH_TO_DATA_DIR runs/demo/data

Trains the recipe twice, saving every --every iterations, without evaluation but at the ends of
phases. A checkpoint costs the seconds that the training stands still, and the seconds by which the
iterations during its writing take longer than the median of the same shape in the same phase at
other times. The share is that of as many checkpoints as the recipe has by itself, at its
CHECKPOINT_PERIOD, in its training time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tabulate import tabulate

from multigrid import Step
from slowfast_patches.config import load_recipe
from slowfast_patches.train import loop as train
from slowfast_patches.train.checkpoints import Writer, all_checkpoints
from slowfast_patches.train.milestones import checkpoint_iterations
from slowfast_patches.train.run import run
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.machine import machine, versions

QUIET = ["TEST.ENABLE", False, "BN.USE_PRECISE_STATS", False, "MULTIGRID.EVAL_FREQ", 1]
FEWEST = 3
"""Undisturbed iterations of a shape in a phase that make a median."""


class Record:
    """When the iterations of a run began, and when its checkpoints were written."""

    def __init__(self) -> None:
        self.began: list[tuple[Step, float, float]] = []
        self.held: list[float] = []
        self.written: list[tuple[float, float]] = []
        self.iterations = self.default = 0

    def install(self, every: int, waits: bool) -> None:
        """Watch every training in this process from here on; save every `every` iterations."""
        step_, save, write = train.Trainer._train_step, Writer.save, Writer._write
        record = self

        def train_step(self: Any, step: Step, batch: Any) -> Any:
            record.began.append((step, time.perf_counter(), self.clock.working))
            return step_(self, step, batch)

        def timed_save(self: Any, *args: Any) -> None:
            start = time.perf_counter()
            save(self, *args)
            if waits:
                self.wait()
            record.held.append(time.perf_counter() - start)

        def timed_write(self: Any, *args: Any) -> None:
            start = time.perf_counter()
            write(self, *args)
            record.written.append((start, time.perf_counter()))

        def iterations(recipe: Any, schedule: Any) -> frozenset[int]:
            record.iterations = schedule.iterations
            record.default = len(checkpoint_iterations(recipe, schedule))
            return frozenset({*range(every, schedule.iterations, every), schedule.iterations})

        train.Trainer._train_step, train.checkpoint_iterations = train_step, iterations
        Writer.save, Writer._write = timed_save, timed_write
        self._undo = step_, save, write

    def uninstall(self) -> None:
        train.Trainer._train_step, Writer.save, Writer._write = self._undo
        train.checkpoint_iterations = checkpoint_iterations

    def extra_seconds(self) -> list[float]:
        """By how much the iterations during each writing took longer than others."""
        took, usual = list[tuple[Any, float, float, float]](), defaultdict(list)
        for (step, start, before), (_, end, after) in zip(self.began, self.began[1:], strict=False):
            kind = (step.phase, step.shape)
            took.append((kind, start, end, after - before))
            if not any(start < w_end and w_start < end for w_start, w_end in self.written):
                usual[kind].append(after - before)
        medians = {k: statistics.median(v) for k, v in usual.items() if len(v) >= FEWEST}
        return [
            sum(
                seconds - medians[kind]
                for kind, start, end, seconds in took
                if start < w_end and w_start < end and kind in medians
            )
            for w_start, w_end in self.written
        ]


def measure(cfg_file: str, pairs: list[str], folder: Path, every: int, waits: bool) -> dict:
    """One run of the recipe; its costs."""
    record = Record()
    record.install(every, waits)
    try:
        overrides = [*pairs, *map(str, [*QUIET, "OUTPUT_DIR", folder])]
        run(load_recipe(cfg_file, overrides))
    finally:
        record.uninstall()
    extra = record.extra_seconds()
    cost = statistics.mean(record.held) + statistics.mean(extra)
    training = record.began[-1][2] - record.began[0][2] - sum(extra)
    return {
        "writing": "the training waits" if waits else "in the background",
        "checkpoints": len(record.held),
        "megabytes": all_checkpoints(folder)[-1].stat().st_size / 1e6,
        "held seconds": statistics.mean(record.held),
        "written seconds": statistics.mean(end - start for start, end in record.written),
        "slower seconds": statistics.mean(extra),
        "training seconds": training,
        "at default period": record.default,
        "share %": 100 * record.default * cost / training,
    }


@tool()
def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cfg", required=True, metavar="FILE")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--every", type=int, default=12, help="iterations (default: %(default)s)")
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)  # an earlier place
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE")
    args = parser.parse_args()
    rows = []
    for waits in (False, True):
        folder = args.output / ("waiting" if waits else "background")
        if folder.exists():
            parser.error(f"{folder} is there already")
        rows.append(measure(args.cfg, args.overrides, folder, args.every, waits))
    result = {
        "checkpoints": rows,
        "cfg": args.cfg,
        "overrides": args.overrides,
        "every": args.every,
        "machine": machine(),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    print(tabulate(rows, headers="keys", floatfmt=".3f"))
    for path in {args.output / "checkpoint.json", args.json} - {None}:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
