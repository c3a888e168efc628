"""Several processes against one on the same cores, at the same global batch: the ratio, and where
the time goes.

    python benchmarks/processes.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml \\
        --processes 1 2 --output benchmarks/results/processes.json

Every shape of the recipe's schedule is trained with made-up clips, by the trainer's own step, on
one process with all threads and on each number of processes with their share of them, under gloo.
With several processes three steps are timed: the whole one; one whose gradients stay local, without
the all-reduce; and one whose BN groups stay local as well. The worlds take turns, so that whatever
else the machine does falls on all. Loading is not part of it.
"""

from __future__ import annotations

import socket
import statistics
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from common import (
    new_parser,
    provenance,
    ratios,
    seconds_of,
    take_turns,
    whole_from,
    write_result,
)
from tabulate import tabulate
from torch import multiprocessing
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
WAYS = ("whole", "gradients local", "BN local too")

Order = tuple[int, int, str]
"""What is timed: processes, the iteration, and which of WAYS."""


class Trained:
    """A model in training in one process of a world."""

    def __init__(self, recipe: Recipe, world: World) -> None:
        torch.manual_seed(recipe.rng_seed)
        self.recipe, self.world = recipe, world
        self.schedule = schedule_of(recipe, VIDEOS)
        if world.size > 1:
            form_groups(self.schedule)
        model = build_model(recipe, grouped_bn=True)
        self.stepper = Stepper(recipe, model, world.device)
        self.stepper.network = parallel(model, world)

    def seconds(self, iteration: int, way: str) -> float:
        """Of one step, from when all processes are ready until all are done."""
        step, size = self.schedule.at(iteration), self.world.size
        clips = clip_numbers(step, self.world.rank, size)
        batch = made_up_batch(self.recipe, len(clips), step.shape)
        if way == "BN local too":
            step = step._replace(bn_size=min(step.bn_size or 1, len(clips)))
        network, wait = self.stepper.network, dist.barrier if size > 1 else lambda: None
        exchange: AbstractContextManager[None] = nullcontext()
        if way != "whole" and isinstance(network, DistributedDataParallel):
            exchange = network.no_sync()

        def take() -> None:
            self.stepper(step, batch, clips)
            wait()

        with exchange:
            wait()
            return seconds_of(take)


def work(
    recipe: Recipe, rank: int, size: int, threads: int, port: int, orders: Connection | None
) -> None:
    """One process of a world; rank 0 takes orders, (iteration, way), and sends seconds back."""
    torch.set_num_threads(threads)
    if size > 1:
        where = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=size)
    trained = Trained(recipe, World(rank, size, torch.device("cpu")))
    while True:
        order: list[Any] = [orders.recv() if orders is not None else None]
        if size > 1:
            dist.broadcast_object_list(order, src=0)
        if order[0] is None:
            return
        seconds = trained.seconds(*order[0])
        if orders is not None:
            orders.send(seconds)


def start_world(recipe: Recipe, size: int, threads: int) -> Connection:
    """Start processes that wait for orders, which the connection takes."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    for rank in range(size):
        orders = theirs if rank == 0 else None
        arguments = (recipe, rank, size, max(1, threads // size), port, orders)
        context.Process(target=work, args=arguments, daemon=True).start()
    return ours


def measure(recipe: Recipe, sizes: list[int], rounds: int, threads: int) -> list[dict[str, Any]]:
    """A row for each shape of the schedule: medians, and the ratio to one process."""
    schedule = schedule_of(recipe, VIDEOS)
    for size in sizes:
        check_world_size(recipe, schedule, size)
    worlds = {size: start_world(recipe, size, threads) for size in sizes}

    def take(size: int, iteration: int, way: str) -> float:
        worlds[size].send((iteration, way))
        return float(worlds[size].recv())

    iterations = _one_of_each(schedule)
    turns = {
        (size, iteration, way): partial(take, size, iteration, way)
        for iteration in iterations
        for size in sizes
        for way in (WAYS if size > 1 else WAYS[:1])
    }
    times = take_turns(turns, rounds, warm_up=WARM_UP)
    for connection in worlds.values():
        connection.send(None)
    return [_row(schedule, i, size, times) for i in iterations for size in sizes if size > 1]


def _row(
    schedule: Schedule, iteration: int, size: int, times: dict[Order, list[float]]
) -> dict[str, Any]:
    step, one = schedule.at(iteration), times[1, iteration, "whole"]
    whole, local, apart = (times[size, iteration, way] for way in WAYS)
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
    parser.add_argument("--processes", type=whole_from(1), nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--threads", type=int, default=available_cores(), metavar="N")
    args = parser.parse_intermixed_args(argv)
    sizes = sorted({1, *args.processes})
    rows = measure(load_recipe(args.cfg, args.overrides), sizes, args.rounds, args.threads)
    print(tabulate(rows, headers="keys", floatfmt=".3f"))
    settings = {"recipe": args.cfg, "threads of a world": args.threads, "rounds": args.rounds}
    write_result(args.output, "processes.py", argv, {"rows": rows, **settings, **provenance()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
