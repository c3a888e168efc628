"""Start the processes of a run, join their process group, and report how they fail.

torchrun or srun starts the processes. Without these launchers, the user runs the same command on
each of NUM_SHARDS machines, and the command starts NUM_GPUS processes. With NUM_GPUS 0, there is
one process per machine, which trains on the CPU.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from multiprocessing import resource_tracker
from threading import Timer
from types import FrameType
from typing import NoReturn

import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, start_processes

from slowfast_patches.config.imports import import_modules
from slowfast_patches.config.recipe import KEYS, Recipe, differences, values_by_key
from slowfast_patches.config.scale import scale_rates
from slowfast_patches.launch.device import process_device, with_precision
from slowfast_patches.launch.placement import Placement, find_placement
from slowfast_patches.utils.distributed import World, gather_objects, wait_for_all
from slowfast_patches.utils.errors import RunError, UserError, exit_status, is_lost_rank, report
from slowfast_patches.utils.interruption import STOPPED_BEFORE_START, TrainingInterruptedError
from slowfast_patches.utils.processes import forget_safe_path, safe_path
from slowfast_patches.utils.signals import (
    STOP_SIGNALS,
    block_signals,
    finished,
    handle_signals,
    interruptible,
    users_handlers,
)

Main = Callable[[Recipe, World], None]
Check = Callable[[Recipe, Placement], None]

START_METHOD = "spawn"
_GRACE = 3.0
"""Seconds to wait for other ranks after one has failed: before SIGTERM, and then before SIGKILL."""
_LOST_SECONDS = 5.0
"""Seconds that the other ranks wait, so that a failed rank can report the cause first."""
_MARGIN = 5.0
"""Seconds after DIST_JOIN_SECONDS to wait for the timeout error of torch."""


def resolve(recipe: Recipe, placement: Placement | None = None) -> Recipe:
    """Return a copy of a recipe in which all machine-dependent values are filled in.

    These are the numbers of machines and processes, the learning rates (see `scale_rates`), and
    TRAIN.MIXED_PRECISION in place of auto.

    Raises:
        ValueError: The launcher contradicts the recipe.
    """
    placement = placement or find_placement(recipe, os.environ)
    values = {
        "NUM_SHARDS": placement.machines,
        "SHARD_ID": placement.machine,
        "PROCESSES_PER_MACHINE": placement.per_machine,
    }
    return scale_rates(with_precision(recipe.replaced(values), recipe.num_gpus > 0))


@users_handlers()
def launch(recipe: Recipe, init_method: str | None, main: Main, check: Check | None = None) -> None:
    """Resolve a recipe, call `main(recipe, world)` in every process of the run, and wait.

    A single process needs no process group. If a launcher started this process, or if it is the
    only one on this machine, it becomes a rank. Otherwise, it starts the ranks of this machine.

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
        RunError: A rank was killed by a signal.
        SystemExit: A rank failed and has reported the error. The exit status is that of the rank.
    """
    placement = find_placement(recipe, os.environ, init_method)
    recipe = resolve(recipe, placement)
    # Rank 0 opens a file for each process. The soft limit is often 1024 files.
    # Data loader workers open a file for each tensor in shared memory.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    with interruptible():
        if check is not None:
            check(recipe, placement)
        if placement.size == 1:
            main(recipe, World(0, 1, process_device(recipe, 0)))
            return
    if placement.machines > 1 and placement.address is None:
        raise UserError(
            f"NUM_SHARDS is {placement.machines}, but there is no rendezvous. Add --init-method "
            "tcp://FIRST-MACHINE:PORT to the command on all machines."
        )
    rank = placement.local_rank
    if rank is None:
        _start_ranks(placement, recipe, main)
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        _work(rank, {rank: {}}, recipe, main)
    else:
        _work(rank, {rank: placement.variables(rank)}, recipe, main)


def _start_ranks(placement: Placement, recipe: Recipe, main: Main) -> None:
    """Run `_work` in one process for each rank of this machine, and wait until all have ended.

    torch.distributed.elastic is not used: its rendezvous blocks the main thread in C++, where no
    signal is handled, and it kills ranks that save a checkpoint for more than 30 seconds.
    """
    received = list[int]()

    def forward(number: int, frame: FrameType | None) -> None:
        # A terminal also sends the SIGINT of Ctrl-C to the ranks.
        # A second SIGINT would end them without saving, so forward it as SIGTERM.
        received.append(number)
        again = received.count(signal.SIGINT) > 1
        for rank in multiprocessing.active_children():
            rank.kill() if again else rank.terminate()
        if again:
            raise KeyboardInterrupt

    store = None
    if placement.address is None:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        placement = replace(placement, address=f"127.0.0.1:{store.port}")
    shared = {"TORCHELASTIC_USE_AGENT_STORE": str(store is not None)}
    of_ranks = {rank: placement.variables(rank) | shared for rank in range(placement.per_machine)}
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
    with safe_path():
        resource_tracker.ensure_running()  # Start it now, because starting it unblocks signals.
    with handle_signals(dict.fromkeys(STOP_SIGNALS, forward)):
        # The ranks inherit the blocked signals until they can handle them.
        with block_signals(), safe_path():
            ranks = start_processes(  # type: ignore[no-untyped-call]
                _work, (of_ranks, recipe, main), len(of_ranks), False, start_method=START_METHOD
            )
        try:
            while not ranks.join(grace_period=_GRACE):
                pass
        except ProcessExitedException as error:
            _raise_for(error, placement.first_rank + error.error_index, received)
        finished.set()


def _raise_for(error: ProcessExitedException, rank: int, received: list[int]) -> NoReturn:
    """Raise the error that describes how a rank ended.

    Args:
        error: Error of torch about the rank.
        rank: The rank.
        received: Signals that this process has received.
    """
    if error.exit_code >= 0:
        raise SystemExit(error.exit_code)
    if -error.exit_code not in STOP_SIGNALS:
        advice = ". The machine may be out of memory" if error.signal_name == "SIGKILL" else ""
        raise RunError(f"rank {rank} was killed by {error.signal_name}{advice}") from error
    if signal.SIGINT in received:
        raise KeyboardInterrupt
    raise TrainingInterruptedError(STOPPED_BEFORE_START.format(error.signal_name))


def _work(
    local_rank: int, of_ranks: Mapping[int, Mapping[str, str]], recipe: Recipe, main: Main
) -> None:
    """Join the process group as a rank of this machine, and run `main`.

    If `main` fails, report the error and end the process. `of_ranks` has the environment variables
    to set in each rank of this machine.
    """
    forget_safe_path()
    os.environ.update(of_ranks[local_rank])
    rank = int(os.environ["RANK"])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the process until training begins.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    try:
        import_modules(recipe.imports)  # Spawned processes have not imported these modules yet.
        device = process_device(recipe, local_rank)
        _join(recipe, local_rank)
        patience = timedelta(seconds=recipe.dist_timeout_seconds)
        try:
            main(recipe, World(rank, dist.get_world_size(), device, local_rank))
        except TrainingInterruptedError:
            wait_for_all(patience)
            raise
        # Wait, because launchers kill the other ranks soon after some ranks have ended.
        # The other ranks may still save a checkpoint or write results.
        wait_for_all(patience)
        dist.destroy_process_group()
    except BaseException as error:
        _end(error, rank, local_rank)


def _join(recipe: Recipe, local_rank: int) -> None:
    """Join the process group. Raise RunError if ranks are missing or their recipes differ."""
    error = RunError(
        f"the processes of this run did not meet at {os.environ['MASTER_ADDR']}:"
        f"{os.environ['MASTER_PORT']} within DIST_JOIN_SECONDS ({recipe.dist_join_seconds:g} s). "
        "Check that the address is a free port of the first machine.",
        everywhere=True,
    )
    seconds = timedelta(seconds=recipe.dist_join_seconds)
    # torch ignores its timeout if the port is open but never answers.
    timer = Timer(
        recipe.dist_join_seconds + _MARGIN,
        lambda: os._exit(report(error, terminal=local_rank == 0)),
    )
    timer.start()
    try:
        store, rank, size = next(iter(dist.rendezvous("env://", timeout=seconds)))
    except dist.DistError as cause:
        raise error from cause
    finally:
        timer.cancel()
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        # On one machine, torchrun reuses the store after a restart. A prefix separates the keys.
        # On several machines, each restart has a new store.
        store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    timeout = timedelta(seconds=recipe.dist_timeout_seconds)
    store.set_timeout(timeout)
    backend = "gloo" if recipe.num_gpus == 0 else recipe.dist_backend.replace("auto", "nccl")
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    _check_same_recipe(recipe)


def _check_same_recipe(recipe: Recipe) -> None:
    """Raise RunError in all ranks if two ranks have different recipes."""
    first, *others = gather_objects(values_by_key(recipe))
    of_machine = [name for name, key in KEYS.items() if key.machine]
    for number, keys in enumerate(others, 1):
        if differing := "; ".join(differences(first, keys, of_machine).values()):
            raise RunError(
                f"rank {number} (here) has another recipe than rank 0 (there): {differing}. Use "
                "the same recipe on all machines.",
                everywhere=True,
            )


def _end(error: BaseException, rank: int, local_rank: int) -> NoReturn:
    """Report an error and end this process without waiting for threads or collectives.

    An error that all ranks raise is reported by one rank per machine. An interruption is reported
    by rank 0 only.
    """
    try:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # It must not change the exit status.
        reports = local_rank == 0 or not getattr(error, "everywhere", False)
        if isinstance(error, TrainingInterruptedError):
            reports = rank == 0
        elif is_lost_rank(error):
            time.sleep(_LOST_SECONDS)
            reports = local_rank == 0
        # Ignore the SIGTERM that the launcher sends after another rank has ended.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        report(error, f"rank {rank}: ", terminal=reports)
        logging.shutdown()
        for child in multiprocessing.active_children():
            child.kill()
    finally:
        os._exit(exit_status(error))
