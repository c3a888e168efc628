"""Start the processes of a run: torchrun's, srun's, by the host's own convention, or this alone.

The host's convention: NUM_GPUS processes on each of NUM_SHARDS machines, of which this is number
SHARD_ID, meeting at --init-method. NUM_GPUS 0 is one process a machine, on the CPU.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from tempfile import TemporaryDirectory

import torch.distributed as dist

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import scale_to_processes
from slowfast_patches.launch.device import check_gpus, process_device, with_precision
from slowfast_patches.launch.failing import end_process
from slowfast_patches.launch.joining import check_address, join
from slowfast_patches.launch.placement import Placement, find_placement
from slowfast_patches.launch.spawning import spawn
from slowfast_patches.launch.stopping import TrainingInterruptedError, interruptible
from slowfast_patches.utils.distributed import World, wait_for_all

__all__ = ["check_gpus", "for_processes", "launch", "process_device", "processes_of"]

Main = Callable[[Recipe, World], None]
Check = Callable[[Recipe], None]


def processes_of(recipe: Recipe) -> int:
    """Processes of a run over all machines, as its launcher or else the config says."""
    return find_placement(recipe, os.environ).size


def for_processes(recipe: Recipe) -> Recipe:
    """The config as the processes of this run train it; everything that reads a recipe calls this.

    Machines are counted as the launcher does, as TRAIN.BATCH_SIZE is per machine; batch and rates
    are scaled where SOLVER.REFERENCE_WORLD_SIZE asks for it. TRAIN.MIXED_PRECISION auto is decided.

    Raises:
        ValueError: launcher and config disagree, or the recipe cannot be scaled.
    """
    placement = find_placement(recipe, os.environ)
    machines = {"NUM_SHARDS": placement.machines, "SHARD_ID": placement.machine}
    if any(recipe[key] != number for key, number in machines.items()):
        recipe = recipe.replaced(machines)
    recipe = with_precision(recipe, recipe.num_gpus > 0)
    return scale_to_processes(recipe, placement.size)


def launch(recipe: Recipe, init_method: str | None, main: Main, check: Check | None = None) -> None:
    """Call `main(recipe, world)` in every process of the run and wait for them.

    Args:
        recipe: the recipe, as loaded.
        init_method: where the processes meet: tcp://HOST:PORT of the first machine, or file://
            and a path; None where the launcher says it, or on one machine.
        main: what each process does; to be pickled.
        check: called with the recipe by each command before it starts processes or joins others.

    Raises:
        ValueError: launchers contradict each other, or `check` did.
        SystemExit: with the exit status, where a process of several failed; it has said why.
    """
    placement = find_placement(recipe, os.environ, init_method)
    with interruptible():
        if check is not None:
            check(recipe)
        if placement.size == 1:
            main(recipe, World(0, 1, process_device(recipe, 0)))
            return
    with TemporaryDirectory(prefix="meeting-") as folder:
        address = _meeting_place(placement, f"file://{folder}/place")
        arguments = (placement, address, recipe, main)
        if placement.count == 1:
            _process(0, *arguments)
        elif status := spawn(_process, arguments, placement.count, placement.first_rank):
            raise SystemExit(status)


def _meeting_place(placement: Placement, here: str) -> str:
    """Where the processes meet; `here` if they are all of this command.

    Raises:
        ValueError: several machines are to meet, and nobody says where, or not as an address. The
            host's default, a fixed port of localhost, leads each of them to itself.
    """
    if placement.address is not None:
        check_address(placement.address)
        return placement.address
    if placement.machines > 1:
        raise ValueError(
            f"NUM_SHARDS {placement.machines}: say where the machines meet, with --init-method "
            "tcp://FIRST-MACHINE:PORT, the same on all"
        )
    return here


def _process(number: int, placement: Placement, address: str, recipe: Recipe, main: Main) -> None:
    """One process of the run, from entering the group to leaving it; a failure ends it here.

    `number` counts those that the command starts.
    """
    rank, local_rank = placement.first_rank + number, placement.local_rank + number
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # `spawn` holds it back
        os.environ["LOCAL_WORLD_SIZE"] = str(placement.sharing(os.environ))  # as torchrun does
        device = process_device(recipe, local_rank)
        decided = with_precision(recipe, recipe.num_gpus > 0)  # all must have decided the same
        join(rank, placement.size, address, decided, _backend(recipe))
        try:
            main(recipe, World(rank, placement.size, device, local_rank))
        except TrainingInterruptedError:
            wait_for_all()  # the first that ends ends those that still write
            raise
        dist.destroy_process_group()
    except BaseException as error:
        end_process(error, rank, first_here=local_rank == 0)


def _backend(recipe: Recipe) -> str:
    if recipe.dist_backend != "auto":
        return str(recipe.dist_backend)
    return "nccl" if recipe.num_gpus > 0 else "gloo"
