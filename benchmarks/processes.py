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

import argparse
import json
import random
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tabulate import tabulate
from torch import multiprocessing, nn

from multigrid import Batch, Schedule, Step, clip_numbers, empty_clips, form_groups
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import check_world_size, schedule_of
from slowfast_patches.models.build import build_model
from slowfast_patches.train.parallel import parallel
from slowfast_patches.train.step import Stepper
from slowfast_patches.utils.command_line import add_old_name, tool
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.machine import available_cores, machine, versions

WARM_UP, VIDEOS = 2, 10**6
WAYS = ("whole", "gradients local", "BN local too")


class Trained:
    """A model in training in one process of a world."""

    def __init__(self, recipe: Recipe, world: World) -> None:
        torch.manual_seed(recipe.rng_seed)
        self.recipe, self.world = recipe, world
        self.schedule = schedule_of(recipe, VIDEOS)
        if world.size > 1:
            form_groups(self.schedule)
        self.model = build_model(recipe, grouped_bn=True)
        self.stepper = Stepper(recipe, self.model, world.device)
        self.network = self.stepper.network = parallel(self.model, world)

    def seconds(self, iteration: int, way: str) -> float:
        """Of one step, from when all processes are ready until all are done."""
        step = self.schedule.at(iteration)
        batch, clips = self._batch(step), clip_numbers(step, self.world.rank, self.world.size)
        if way == "BN local too":
            step = step._replace(bn_size=min(step.bn_size or 1, len(clips)))
        exchanges = way == "whole" or self.world.size == 1
        with nullcontext() if exchanges else _no_exchange(self.network):
            self._wait()
            start = time.perf_counter()
            self.stepper(step, batch, clips)
            self._wait()
        return time.perf_counter() - start

    def _batch(self, step: Step) -> Batch:
        count = step.shape.batch // self.world.size
        return Batch(
            clips=empty_clips(count, step.shape.frames, step.shape.crop).random_(0, 256),
            labels=torch.randint(0, self.recipe.model.num_classes, (count,)),
            flips=torch.zeros(count, dtype=torch.bool),
            iteration=step.iteration,
            failures=[],
        )

    def _wait(self) -> None:
        if self.world.size > 1:
            dist.barrier()


@contextmanager
def _no_exchange(network: nn.Module) -> Iterator[None]:
    assert isinstance(network, nn.parallel.DistributedDataParallel)
    with network.no_sync():
        yield


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


class Worlds:
    """Processes that wait for orders, for each number of them."""

    def __init__(self, recipe: Recipe, sizes: list[int], threads: int) -> None:
        context, self._connections = multiprocessing.get_context("spawn"), {}
        for size in sizes:
            ours, theirs = context.Pipe()
            share, port = max(1, threads // size), _free_port()
            for rank in range(size):
                orders = theirs if rank == 0 else None
                arguments = (recipe, rank, size, share, port, orders)
                context.Process(target=work, args=arguments, daemon=True).start()
            self._connections[size] = ours

    def seconds(self, size: int, iteration: int, way: str) -> float:
        self._connections[size].send((iteration, way))
        return float(self._connections[size].recv())

    def end(self) -> None:
        for connection in self._connections.values():
            connection.send(None)


def measure(recipe: Recipe, sizes: list[int], rounds: int, threads: int) -> list[dict[str, Any]]:
    """A row for each shape of the schedule: medians, and the ratio to one process."""
    schedule = schedule_of(recipe, VIDEOS)
    for size in sizes:
        check_world_size(recipe, schedule, size)
    worlds, iterations = Worlds(recipe, sizes, threads), _one_of_each(schedule)
    orders = [
        (size, iteration, way)
        for iteration in iterations
        for size in sizes
        for way in (WAYS if size > 1 else WAYS[:1])
    ]
    times: dict[tuple[int, int, str], list[float]] = {order: [] for order in orders}
    for number in range(-WARM_UP, rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for order in random.sample(orders, len(orders)):
            seconds = worlds.seconds(*order)
            if number >= 0:
                times[order].append(seconds)
    worlds.end()
    return [_row(schedule.at(i), i, size, times) for i in iterations for size in sizes if size > 1]


def _row(
    step: Step, iteration: int, size: int, times: dict[tuple[int, int, str], list[float]]
) -> dict[str, Any]:
    one = times[1, iteration, "whole"]
    whole, local, apart = (times[size, iteration, way] for way in WAYS)
    ratios = [ours / theirs for ours, theirs in zip(whole, one, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    exchange = [a - b for a, b in zip(whole, local, strict=True)]
    groups = [a - b for a, b in zip(local, apart, strict=True)]
    return {
        "shape": str(step.shape),
        "BN over": step.bn_size,
        "processes": size,
        "clips each": step.shape.batch // size,
        "one process, s": statistics.median(one),
        "several, s": statistics.median(whole),
        "ratio": median,
        "25 %": low,
        "75 %": high,
        "all-reduce, s": statistics.median(exchange),
        "BN groups, s": statistics.median(groups),
        "computing, s": statistics.median(apart),
    }


def _one_of_each(schedule: Schedule) -> list[int]:
    """The first iteration of each shape with its BN size."""
    first: dict[Any, int] = {}
    for phase in schedule.phases:
        for iteration in range(phase.start, phase.start + len(phase.shapes)):
            step = schedule.at(iteration)
            first.setdefault((step.shape, step.bn_size), iteration)
    return list(first.values())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@tool()
def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cfg", required=True, metavar="FILE")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--rounds", type=int, default=15, metavar="N")
    parser.add_argument("--threads", type=int, default=available_cores(), metavar="N")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="write the numbers here")
    add_old_name(parser, "--json", "output", Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE")
    args = parser.parse_args()
    sizes = sorted({1, *args.processes})
    rows = measure(load_recipe(args.cfg, args.overrides), sizes, args.rounds, args.threads)
    print(tabulate(rows, headers="keys", floatfmt=".3f"))
    if args.output:
        report = {
            "rows": rows,
            "recipe": args.cfg,
            "threads of a world": args.threads,
            "rounds": args.rounds,
            "machine": machine(),
            "versions": versions(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        args.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
