"""Several processes against one on the same cores, at the same global batch: the ratio, and where
the time goes.

    python benchmarks/processes.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml \\
        --processes 2 --output benchmarks/results/processes.json

Every shape of the recipe's schedule is trained with made-up clips, by the trainer's own step, on
one process with all threads and on each number of processes with their share of them, under gloo.
With several processes three steps are timed: the whole one; one whose gradients stay local, without
the all-reduce; and one whose BN groups stay local as well. They take turns with the single process,
which is the first of the several while the others wait, so that whatever else the machine does
falls on all. Loading is not part of it.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from common import (
    CPU,
    new_parser,
    on_processes,
    provenance,
    ratios,
    seconds_of,
    take_turns,
    whole_from,
    write_result,
)
from tabulate import tabulate
from torch.nn.parallel import DistributedDataParallel

from multigrid import Schedule, clip_numbers, form_groups
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import check_world_size, schedule_of
from slowfast_patches.models.build import build_model
from slowfast_patches.train.step import Stepper, parallel
from slowfast_patches.train.warm_up import made_up_batch
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.machine import available_cores

WARM_UP, VIDEOS = 2, 10**6
ONE, WAYS = "one process", ("whole", "gradients local", "BN local too")

Turn = tuple[int, str]
"""What is timed: the iteration, and ONE or which of WAYS."""


class Trained:
    """A model in training in one process of a world."""

    def __init__(self, recipe: Recipe, world: World, threads: int) -> None:
        torch.manual_seed(recipe.rng_seed)
        self.recipe, self.world, self.threads = recipe, world, threads
        self.schedule = schedule_of(recipe, VIDEOS)
        model = build_model(recipe, grouped_bn=True)
        self.stepper = Stepper(recipe, model, world.device)
        self.stepper.network = parallel(model, world)

    def seconds(self, iteration: int, way: str) -> float:
        """Of one step, from when all processes are ready until all are done."""
        torch.set_num_threads(self.threads)
        step, size = self.schedule.at(iteration), self.world.size
        clips = clip_numbers(step, self.world.rank, size)
        batch = made_up_batch(self.recipe, len(clips), step.shape)
        if way == "BN local too":
            step = step._replace(bn_size=min(step.bn_size or 1, len(clips)))
        network, wait = self.stepper.network, dist.barrier if size > 1 else lambda: None
        exchange: AbstractContextManager[None] = nullcontext()
        if way in WAYS[1:] and isinstance(network, DistributedDataParallel):
            exchange = network.no_sync()

        def take() -> None:
            self.stepper(step, batch, clips)
            wait()

        with exchange:
            wait()
            return seconds_of(take)


def measure(recipe: Recipe, size: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    """A row for each shape of the schedule: medians, and the ratio to one process."""
    schedule = schedule_of(recipe, VIDEOS)
    check_world_size(recipe, schedule, size)
    times = on_processes(_work, size, recipe, size, rounds, threads)
    return [_row(schedule, iteration, size, times) for iteration in _one_of_each(schedule)]


def _work(
    rank: int, recipe: Recipe, size: int, rounds: int, threads: int
) -> dict[Turn, list[float]]:
    """Measure as one process of several; those of rank 0 count."""
    schedule = schedule_of(recipe, VIDEOS)
    form_groups(schedule)
    several = Trained(recipe, World(rank, size, CPU), max(1, threads // size))
    alone = Trained(recipe, World(0, 1, CPU), threads)

    def take(iteration: int, way: str) -> float:
        if way != ONE:
            return several.seconds(iteration, way)
        seconds = alone.seconds(iteration, way) if rank == 0 else 0.0
        dist.barrier()
        return seconds

    ways = [(iteration, way) for iteration in _one_of_each(schedule) for way in (ONE, *WAYS)]
    turns = {turn: partial(take, *turn) for turn in ways}
    return take_turns(turns, rounds, warm_up=WARM_UP, order=random.Random(0))


def _row(
    schedule: Schedule, iteration: int, size: int, times: dict[Turn, list[float]]
) -> dict[str, Any]:
    step = schedule.at(iteration)
    one, whole, local, apart = (times[iteration, way] for way in (ONE, *WAYS))
    ratio = ratios(whole, one)
    exchange = [a - b for a, b in zip(whole, local, strict=True)]
    groups = [a - b for a, b in zip(local, apart, strict=True)]
    return {
        "shape": str(step.shape),
        "BN over": step.bn_size,
        "processes": size,
        "clips each": step.shape.batch // size,
        "one process, s": statistics.median(one),
        "several, s": statistics.median(whole),
        "ratio": ratio["median"],
        "25 %": ratio["quartile_1"],
        "75 %": ratio["quartile_3"],
        "all-reduce, s": statistics.median(exchange),
        "BN groups, s": statistics.median(groups),
        "computing, s": statistics.median(apart),
    }


def _one_of_each(schedule: Schedule) -> list[int]:
    """The first iteration of each shape with its BN size."""
    first = dict[Any, int]()
    for phase in schedule.phases:
        for iteration in range(phase.start, phase.start + len(phase.shapes)):
            step = schedule.at(iteration)
            first.setdefault((step.shape, step.bn_size), iteration)
    return list(first.values())


@tool()
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; returns the exit status."""
    parser = new_parser(__doc__, rounds=15)
    parser.add_argument("--cfg", required=True, metavar="FILE")
    parser.add_argument("--processes", type=whole_from(2), nargs="+", default=[2], metavar="N")
    parser.add_argument("--threads", type=int, default=available_cores(), metavar="N")
    args = parser.parse_intermixed_args(argv)
    recipe, rows = load_recipe(args.cfg, args.overrides), list[dict[str, Any]]()
    for size in args.processes:
        rows += measure(recipe, size, args.rounds, args.threads)
    print(tabulate(rows, headers="keys", floatfmt=".3f"))
    settings = {"recipe": args.cfg, "threads of a world": args.threads, "rounds": args.rounds}
    write_result(args.output, "processes.py", argv, {"rows": rows, **settings, **provenance()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
