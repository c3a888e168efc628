"""Start the processes of a run: under torchrun or srun, by PySlowFast's convention, or just one.

PySlowFast's convention is NUM_GPUS processes on each of NUM_SHARDS machines. SHARD_ID is the number
of this machine, and --init-method is the rendezvous. NUM_GPUS 0 is one process per machine, on the
CPU.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import scale_to_world_size
from slowfast_patches.launch.device import process_device, with_precision
from slowfast_patches.launch.placement import Placement, find_placement
from slowfast_patches.launch.stopping import interruptible
from slowfast_patches.launch.workers import Main, start_workers, work
from slowfast_patches.utils.distributed import World

Check = Callable[[Recipe, Placement], None]


def resolve(recipe: Recipe, placement: Placement | None = None) -> Recipe:
    """Return a recipe with everything resolved that depends on the machines of the run.

    `world_size`, NUM_SHARDS and SHARD_ID are those of the launcher, batch size and learning rates
    are scaled to them (`scale_to_world_size`), and TRAIN.MIXED_PRECISION auto is decided. All
    other code reads them from the recipe.

    Args:
        recipe: The recipe, as loaded.
        placement: Where the processes run. By default, that of the environment variables.

    Raises:
        ValueError: Launcher and recipe disagree, or the recipe cannot be scaled.
    """
    placement = placement or find_placement(recipe, os.environ)
    values = {
        "NUM_SHARDS": placement.machines,
        "SHARD_ID": placement.machine,
        "PROCESSES_PER_MACHINE": placement.per_machine,
    }
    return scale_to_world_size(with_precision(recipe.replaced(values), recipe.num_gpus > 0))


def launch(recipe: Recipe, init_method: str | None, main: Main, check: Check | None = None) -> None:
    """Resolve a recipe, call `main(recipe, world)` in every process, and wait for them.

    A single process calls `main` without a process group. A process that torchrun or srun started,
    or that is the only one of its machine, joins the group as a rank. Otherwise, torchrun's
    launcher starts the ranks of this machine.

    Args:
        recipe: The recipe, as loaded.
        init_method: Rendezvous of several machines, tcp://HOST:PORT of the first. None on a single
            machine, or if the launcher knows it.
        main: Function to call. It must be picklable.
        check: Function to call with the resolved recipe and the placement before processes are
            started or joined.

    Raises:
        ValueError: Launcher and recipe contradict each other, there is no rendezvous, or `check`
            failed.
        ToolError: As `start_workers`.
        SystemExit: As `start_workers`.
    """
    placement = find_placement(recipe, os.environ, init_method)
    recipe = resolve(recipe, placement)
    with interruptible():
        if check is not None:
            check(recipe, placement)
        if placement.size == 1:
            main(recipe, World(0, 1, process_device(recipe, 0)))
            return
    if placement.machines > 1 and placement.launcher != "torchrun" and placement.address is None:
        raise ValueError(
            f"NUM_SHARDS {placement.machines} needs a rendezvous. Add --init-method "
            "tcp://FIRST-MACHINE:PORT, the same on all machines."
        )
    # Rank 0 has an open file for each process, and the soft limit is often 1024.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    if placement.local_rank is None:
        start_workers(placement, recipe, main)
        return
    if placement.launcher != "torchrun":
        os.environ.update(placement.variables(os.environ))
    work(recipe, main)
