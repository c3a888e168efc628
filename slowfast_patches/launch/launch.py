"""Start the processes of a run.

Processes can be started by torchrun, by srun, or by PySlowFast's convention: run the same command
on each of NUM_SHARDS machines, and it starts NUM_GPUS processes. SHARD_ID is the index of the
machine, and --init-method is the rendezvous. With NUM_GPUS 0, there is one process per machine,
which trains on the CPU.
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
    """Return a copy of a recipe with the values that depend on the machines of the run.

    The world size, NUM_SHARDS and SHARD_ID are taken from the launcher. Batch size and learning
    rates are scaled to the world size (see `scale_to_world_size`). TRAIN.MIXED_PRECISION auto
    becomes True or False. All other code reads these values from the recipe.

    Args:
        recipe: Recipe as loaded.
        placement: Placement of the processes. None means to read it from the environment variables.

    Raises:
        ValueError: The launcher contradicts the recipe, or the recipe cannot be scaled.
    """
    placement = placement or find_placement(recipe, os.environ)
    values = {
        "NUM_SHARDS": placement.machines,
        "SHARD_ID": placement.machine,
        "PROCESSES_PER_MACHINE": placement.per_machine,
    }
    return scale_to_world_size(with_precision(recipe.replaced(values), recipe.num_gpus > 0))


def launch(recipe: Recipe, init_method: str | None, main: Main, check: Check | None = None) -> None:
    """Resolve a recipe, call `main(recipe, world)` in every process of the run, and wait.

    If the run has a single process, `main` is called without a process group. If this process was
    started by torchrun or srun, or is the only one on this machine, it becomes a rank of the
    process group. Otherwise, this process starts the ranks of this machine.

    Args:
        recipe: Recipe as loaded.
        init_method: Rendezvous of several machines, tcp://HOST:PORT of the first machine. None on a
            single machine, or if the launcher provides the rendezvous.
        main: Function to call in every process. It must be picklable.
        check: Function to call with the resolved recipe and the placement, before any process is
            started or joins the group.

    Raises:
        ValueError: The launcher contradicts the recipe, the rendezvous is missing, or `check`
            raised ValueError.
        RunError: See `start_workers`.
        SystemExit: See `start_workers`.
    """
    placement = find_placement(recipe, os.environ, init_method)
    recipe = resolve(recipe, placement)
    # Rank 0 opens a file for each process, and data loader workers open a file for each tensor in
    # shared memory. The soft limit is often 1024 files.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    with interruptible():
        if check is not None:
            check(recipe, placement)
        if placement.size == 1:
            main(recipe, World(0, 1, process_device(recipe, 0)))
            return
    if placement.machines > 1 and placement.address is None:
        raise ValueError(
            f"NUM_SHARDS is {placement.machines}, but there is no rendezvous. Add --init-method "
            "tcp://FIRST-MACHINE:PORT to the command on all machines."
        )
    if placement.local_rank is None:
        start_workers(placement, recipe, main)
        return
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        os.environ.update(placement.variables(placement.local_rank))
    work(recipe, main)
