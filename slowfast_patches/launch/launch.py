"""Start the processes of a run: torchrun's, srun's, by the host's own convention, or this alone.

The host's convention: NUM_GPUS processes on each of NUM_SHARDS machines, of which this is number
SHARD_ID, meeting at --init-method. NUM_GPUS 0 is one process a machine, on the CPU.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import scale_to_processes
from slowfast_patches.datasets.loader import cores_of_process, num_workers
from slowfast_patches.launch.device import keep_memory_whole
from slowfast_patches.launch.early import ending_early
from slowfast_patches.launch.failing import (
    Failures,
    end_process,
    exit_status,
    explain,
    interrupted_status,
    log_failure,
)
from slowfast_patches.launch.meeting import arrive, check_open, enter_round
from slowfast_patches.launch.spawning import spawn
from slowfast_patches.launch.stopping import INTERRUPTED_STATUS, TrainingInterruptedError
from slowfast_patches.launch.stores import Address, connect, host
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.placement import Placement, find_placement

__all__ = [
    "check_gpus",
    "explain_once",
    "for_processes",
    "launch",
    "launch_at",
    "process_device",
    "processes_of",
]

Main = Callable[[Recipe, World], None]
Check = Callable[[Recipe], None]

_FIND_SECONDS = 30.0
"""How long a process looks for the store once all have come: it is there unless its host ended."""


def processes_of(recipe: Recipe) -> int:
    """Processes of a run over all machines, as its launcher or else the config says."""
    return find_placement(recipe, os.environ).size


def check_gpus(recipe: Recipe) -> None:
    """Raise ValueError if a config asks for more GPUs than this machine has."""
    count = torch.cuda.device_count()
    if count < recipe.num_gpus and not _has_gpu_of_its_own(recipe):
        raise ValueError(
            f"NUM_GPUS is {recipe.num_gpus}, this machine has {count}; NUM_GPUS 0 trains on the CPU"
        )


def _has_gpu_of_its_own(recipe: Recipe) -> bool:
    """Whether srun shows each of its tasks one GPU (--gpus-per-task), which is number 0 to all."""
    placement = find_placement(recipe, os.environ)
    one_each = placement.launcher == "srun" and placement.count == 1
    return one_each and torch.cuda.device_count() == 1


def for_processes(recipe: Recipe) -> Recipe:
    """The config as the processes of this run train it; everything that reads a recipe calls this.

    Machines are counted, and batch and rates scaled where SOLVER.REFERENCE_WORLD_SIZE asks for it.

    Raises:
        ValueError: launcher and config disagree, or the recipe cannot be scaled.
    """
    placement = find_placement(recipe, os.environ)
    return scale_to_processes(_with_machines(recipe, placement), placement.size)


def _with_machines(recipe: Recipe, placement: Placement) -> Recipe:
    """The config with machines as the launcher counts them: TRAIN.BATCH_SIZE is per machine."""
    if (placement.machines, placement.machine) == (recipe.num_shards, recipe.shard_id):
        return recipe
    machines = {"NUM_SHARDS": placement.machines, "SHARD_ID": placement.machine}
    return recipe.replaced(machines)


def launch(recipe: Recipe, init_method: str | None, main: Main, check: Check | None = None) -> None:
    """Call `main(recipe, world)` in every process of the run and wait for them.

    Args:
        recipe: the recipe, as loaded.
        init_method: where the processes meet: tcp://HOST:PORT of the first machine, or file://
            and a path; None where the launcher says it, or on one machine, at a free port.
        main: what each process does; to be pickled.
        check: called with the recipe by each command that starts processes: where it fails on one
            machine, the run ends on all.

    Raises:
        ValueError: launchers contradict each other.
        SystemExit: with the exit status, where a process of several failed; it has said why.
    """
    placement = find_placement(recipe, os.environ, init_method)
    if placement.size > 1:
        if status := launch_at(placement, recipe, main, check):
            raise SystemExit(status)
        return
    with ending_early(first=True, torchrun=_by_torchrun(placement)):
        if check is not None:
            check(recipe)
        _run_alone(recipe, main)


def _run_alone(recipe: Recipe, main: Main) -> None:
    try:
        main(recipe, World(0, 1, process_device(recipe, 0)))
    except BaseException as error:
        log_failure(error)
        raise


def launch_at(placement: Placement, recipe: Recipe, main: Main, check: Check | None = None) -> int:
    """`launch` where several processes are placed; the exit status, after saying what was wrong."""
    failures, seconds = None, recipe.dist_join_seconds
    try:
        with ending_early(first=placement.first_rank == 0, torchrun=_by_torchrun(placement)):
            address, _server = _meeting_place(placement)  # hosted for as long as this function runs
            address, meanwhile = _start_of(placement, address, seconds)
            store = _connection("run", address, seconds)
            check_open(store, placement)
            hosts = placement.first_rank == 0 and address.scheme == "tcp"
            failures = Failures(store, placement, hosts=hosts)
            if check is not None:
                check(recipe)
            arrive(store, placement, recipe, seconds, meanwhile)
    except Exception as error:
        return failures.report(error) if failures else _explain_without_store(error, placement)
    arguments = (placement, address, recipe, main)
    if placement.count == 1:
        _process(0, *arguments)
        return 0
    return spawn(_process, arguments, placement.count, placement.first_rank, failures)


def _meeting_place(placement: Placement) -> tuple[Address, dist.Store | None]:
    """The address, and the store there where this command is the one to host it.

    Raises:
        ValueError: several machines are to meet, and nobody says where. The host's default, a fixed
            port of localhost, leads each of them to itself; and on one machine two runs at a time
            would meet there.
    """
    if placement.address is None and placement.machines > 1:
        raise ValueError(
            f"NUM_SHARDS {placement.machines}: say where the machines meet, with --init-method "
            "tcp://FIRST-MACHINE:PORT, the same on all"
        )
    address = Address("tcp", "localhost")
    if placement.address is not None:
        address = Address.parse(placement.address)
    if placement.first_rank > 0 or address.scheme != "tcp":
        return address, None
    server = host(address.port)
    return address._replace(port=server.port), server


def _start_of(
    placement: Placement, address: Address, seconds: float
) -> tuple[Address, Callable[[], None]]:
    """The address of this start of a run alone, and what to call while the others come."""
    if placement.launcher != "torchrun":
        return address, lambda: None
    name, meanwhile = enter_round(_connection("starts", address, seconds), placement, seconds)
    return address._replace(prefix=name), meanwhile


def _by_torchrun(placement: Placement) -> bool:
    return placement.launcher == "torchrun"


def _explain_without_store(error: Exception, placement: Placement) -> int:
    """One process for each machine says what is wrong."""
    return explain(error) if placement.speaks else exit_status(error)


def explain_once(error: BaseException) -> int:
    """Say what ended a run before its processes came together, in one process of each machine that
    a launcher starts; the exit status."""
    environment = os.environ
    if "TORCHELASTIC_RUN_ID" in environment:
        first = environment.get("LOCAL_RANK", "0") == "0"
    else:
        first = environment.get("SLURM_LOCALID", "0") == "0"
    status = explain(error) if first else exit_status(error)
    return interrupted_status(environment) if status == INTERRUPTED_STATUS else status


def _connection(name: str, address: Address, seconds: float) -> dist.Store:
    """A connection of its own to the run's store, for keys of one kind."""
    return dist.PrefixStore(f"{address.prefix}/{name}", connect(address, seconds))


def _connection_for_life(name: str, address: Address, recipe: Recipe) -> dist.Store:
    """One that waits for an answer as long as a collective does: a run may be suspended."""
    store = _connection(name, address, _FIND_SECONDS)
    store.set_timeout(timedelta(seconds=recipe.dist_stall_seconds))
    return store


def _process(
    number: int, placement: Placement, address: Address, recipe: Recipe, main: Main
) -> None:
    """One process of the run, from entering the group to leaving it; a failure ends it here.

    `number` counts those that the command starts.
    """
    rank, failures, interruption = placement.first_rank + number, None, None
    spawned = placement.count > 1
    try:
        with ending_early(first=rank == 0, torchrun=_by_torchrun(placement)):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # `spawn` holds it back
            failures = Failures(
                _connection_for_life("run", address, recipe),
                placement,
                f"rank {rank}",
                hosts=rank == 0 and not spawned and address.scheme == "tcp",
                silent=spawned,
            )
            failures.watch(_connection_for_life("run", address, recipe))
            world = _join(rank, placement.local_rank + number, placement.size, address, recipe)
            interruption = _interruption(main, recipe, world)
        failures.leave(rank, recipe.dist_stall_seconds)
        if rank == 0 and address.scheme == "file":
            Path(address.path).unlink(missing_ok=True)
        dist.destroy_process_group()
    except BaseException as error:
        end_process(failures.report(error) if failures else exit_status(error))
    if interruption is not None:
        if rank == 0:
            explain(interruption)
        end_process(interrupted_status(os.environ))


def _join(rank: int, local_rank: int, size: int, address: Address, recipe: Recipe) -> World:
    """Enter the process group: the only place where a world of several processes is made."""
    device = process_device(recipe, local_rank)
    dist.init_process_group(
        _backend(recipe),
        store=_connection_for_life("group", address, recipe),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=recipe.dist_stall_seconds),
    )
    messages = _connection_for_life("messages", address, recipe)
    return World(rank, size, device, messages, local_rank)


def _interruption(main: Main, recipe: Recipe, world: World) -> TrainingInterruptedError | None:
    """Run `main`; the interruption, if one ended it: no failure, and the same in all processes."""
    try:
        main(recipe, world)
    except TrainingInterruptedError as error:
        log_failure(error)
        return error
    return None


def _backend(recipe: Recipe) -> str:
    if recipe.dist_backend != "auto":
        return str(recipe.dist_backend)
    return "nccl" if recipe.num_gpus > 0 else "gloo"


def process_device(recipe: Recipe, local_rank: int) -> torch.device:
    """The device of a process on this machine; on the CPU, with its share of the cores set."""
    if recipe.num_gpus == 0:
        _share_cores(recipe)
        return torch.device("cpu")
    number = 0 if _has_gpu_of_its_own(recipe) else local_rank
    keep_memory_whole()
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _share_cores(recipe: Recipe) -> None:
    """On the CPU, leave a core to each worker that reads; OMP_NUM_THREADS has the last word.

    A worker that takes the core of one of torch's threads makes the others wait for it at every
    operation: with 2 threads and a busy worker on 2 cores, steps took half as long again.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores_of_process(recipe) - num_workers(recipe)))
