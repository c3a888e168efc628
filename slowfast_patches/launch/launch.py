"""Start the processes of a run: torchrun's, srun's, by the host's own convention, or this alone.

The host's convention: NUM_GPUS processes on each of NUM_SHARDS machines, of which this is number
SHARD_ID, meeting at --init-method. NUM_GPUS 0 is one process a machine, on the CPU.
"""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Callable

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import fit_batch
from slowfast_patches.launch.device import check_gpus, process_device, with_precision
from slowfast_patches.launch.placement import find_placement
from slowfast_patches.launch.stopping import interruptible
from slowfast_patches.launch.workers import Main, start_workers, work
from slowfast_patches.utils.distributed import World

__all__ = ["check_gpus", "for_processes", "launch", "process_device", "processes_of"]

logger = logging.getLogger(__name__)

Check = Callable[[Recipe], None]


def processes_of(recipe: Recipe) -> int:
    """Processes of a run over all machines, by its launcher, else by the recipe."""
    return find_placement(recipe, os.environ).size


def for_processes(recipe: Recipe) -> Recipe:
    """The config as the processes of this run train it; everything that reads a recipe calls this.

    Machines are counted as the launcher does, as TRAIN.BATCH_SIZE is per machine; batch and rates
    are scaled to the processes (`fit_batch`). TRAIN.MIXED_PRECISION auto is decided.

    Raises:
        ValueError: launcher and config disagree, or the recipe cannot be scaled.
    """
    placement = find_placement(recipe, os.environ)
    machines = {"NUM_SHARDS": placement.machines, "SHARD_ID": placement.machine}
    if any(recipe[key] != number for key, number in machines.items()):
        recipe = recipe.replaced(machines)
    recipe = with_precision(recipe, recipe.num_gpus > 0)
    recipe = fit_batch(recipe, placement.size)
    if clips := recipe.solver.reference_batch_size:
        rate = recipe.solver.base_lr
        logger.info("%d clips in a mini-batch: SOLVER.BASE_LR is scaled to %g", clips, rate)
    return recipe


def launch(recipe: Recipe, init_method: str | None, main: Main, check: Check | None = None) -> None:
    """Call `main(recipe, world)` in every process of the run and wait for them.

    A process alone calls it itself and joins nothing. One that torchrun or srun has started is a
    rank, as is the only one of a machine; else torchrun's launcher starts the machine's ranks.

    Args:
        recipe: the recipe, as loaded.
        init_method: where the machines meet: tcp://HOST:PORT of the first; None where the launcher
            says it, or on one machine.
        main: what each process does; to be pickled.
        check: called with the recipe by each command before it starts processes or joins others.

    Raises:
        ValueError: launchers contradict each other, machines have no address to meet at, or
            `check` raised it.
        ToolError, SystemExit: as `start_workers`.
    """
    placement = find_placement(recipe, os.environ, init_method)
    with interruptible():
        if check is not None:
            check(recipe)
        if placement.size == 1:
            main(recipe, World(0, 1, process_device(recipe, 0)))
            return
    if placement.machines > 1 and placement.launcher != "torchrun" and placement.address is None:
        raise ValueError(
            f"NUM_SHARDS {placement.machines}: say where the machines meet, with --init-method "
            "tcp://FIRST-MACHINE:PORT, the same on all"
        )
    # Rank 0 has an open file for each process; the usual soft limit is 1024.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if placement.local_rank is None:
        start_workers(placement, recipe, main)
        return
    if placement.launcher != "torchrun":
        os.environ.update(placement.variables(os.environ))
    work(recipe, main)
