"""Run `main` in several ranks: start the processes, join the process group, and report failures."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
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
from slowfast_patches.launch.device import process_device
from slowfast_patches.launch.placement import Placement
from slowfast_patches.launch.stopping import handle_signals
from slowfast_patches.utils.distributed import World, gather_objects, wait_for_all
from slowfast_patches.utils.errors import (
    EARLY,
    RunError,
    TrainingInterruptedError,
    exit_status,
    is_lost_rank,
    report,
)
from slowfast_patches.utils.signals import STOP_SIGNALS, block_signals, finished

Main = Callable[[Recipe, World], None]

START_METHOD = "spawn"
_LOST_SECONDS = 5.0
"""Seconds that a rank waits before it reports that another rank failed.

In this time, the failed rank can report the cause.
"""
_MARGIN = 5.0
"""Seconds after DIST_JOIN_SECONDS in which torch should raise a timeout error itself."""
_KEYS_SHOWN = 16


def start_workers(placement: Placement, recipe: Recipe, main: Main) -> None:
    """Run `work` in one process for each rank of this machine, and wait until all have ended.

    torch.distributed.elastic is not used here: its rendezvous blocks the main thread in C++, where
    no signal is handled, and its signal handlers leave the time limit for saving to the launcher.

    Raises:
        RunError: A rank was killed by a signal.
        TrainingInterruptedError: A stop signal was received before the training began.
        KeyboardInterrupt: Ctrl-C was pressed before the training began.
        SystemExit: A rank failed and has reported the error. The exit status is that of the rank.
    """
    received = list[int]()

    def forward(number: int, frame: FrameType | None) -> None:
        # A terminal also sends the SIGINT of Ctrl-C to the ranks. A second SIGINT would end them
        # without saving, so forward it as SIGTERM.
        received.append(number)
        again = received.count(signal.SIGINT) > 1
        for rank in multiprocessing.active_children():
            rank.kill() if again else rank.terminate()
        if again:
            raise KeyboardInterrupt

    variables = dict[str, str]()
    if placement.address is None:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        placement = replace(placement, address=f"127.0.0.1:{store.port}")
        variables["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # No rank has to open the store.
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
    resource_tracker.ensure_running()  # Start it now, because starting it unblocks signals.
    with handle_signals(dict.fromkeys(STOP_SIGNALS, forward)):
        with block_signals():  # The ranks inherit this until they can handle signals.
            arguments = (placement, variables, recipe, main)
            count = placement.per_machine
            ranks = start_processes(  # type: ignore[no-untyped-call]
                _begin, arguments, count, join=False, start_method=START_METHOD
            )
        try:
            while not ranks.join():
                pass
        except ProcessExitedException as error:
            _raise_for(error, placement.first_rank + error.error_index, received)
        finished.set()


def _raise_for(error: ProcessExitedException, rank: int, received: list[int]) -> NoReturn:
    """Raise the error that describes how the first failed rank ended.

    Args:
        error: Error of torch, with the exit status of the rank.
        rank: The rank that failed first.
        received: Numbers of the signals that this process received.
    """
    if error.exit_code >= 0:
        raise SystemExit(error.exit_code)
    if -error.exit_code in STOP_SIGNALS and signal.SIGINT in received:
        raise KeyboardInterrupt
    if -error.exit_code in STOP_SIGNALS:
        raise TrainingInterruptedError(EARLY.format(error.signal_name))
    advice = ". The machine may be out of memory" if error.signal_name == "SIGKILL" else ""
    raise RunError(f"rank {rank} was killed by {error.signal_name}{advice}") from error


def _begin(
    local_rank: int, placement: Placement, variables: dict[str, str], recipe: Recipe, main: Main
) -> None:
    """Begin a process that `start_workers` has started."""
    os.environ.update(placement.variables(local_rank) | variables)
    work(recipe, main)


def work(recipe: Recipe, main: Main) -> None:
    """Join the process group as the rank given by torchrun's environment variables, and run `main`.

    If `main` fails, report the error and end the process.
    """
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the process until training begins.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    try:
        import_modules(recipe.imports)  # Spawned processes have not imported these modules yet.
        device = process_device(recipe, local_rank)
        _join(recipe, local_rank)
        patience = timedelta(seconds=recipe.dist_stall_seconds)
        try:
            main(recipe, World(rank, dist.get_world_size(), device, local_rank))
        except TrainingInterruptedError:
            wait_for_all(patience)
            raise
        # Soon after some ranks have ended, launchers end ranks that still save or write results.
        wait_for_all(patience)
        dist.destroy_process_group()
    except BaseException as error:
        _end(error, rank, local_rank)


def _join(recipe: Recipe, local_rank: int) -> None:
    """Join the process group, and check that all ranks have the same recipe.

    Raises:
        RunError: The ranks did not meet within DIST_JOIN_SECONDS, or their recipes differ. All
            ranks raise this error.
    """
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
    timeout = timedelta(seconds=recipe.dist_stall_seconds)
    store.set_timeout(timeout)
    backend = recipe.dist_backend
    if backend == "auto":
        backend = "nccl" if recipe.num_gpus > 0 else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    first, *others = gather_objects(values_by_key(recipe))
    of_machine = [name for name, key in KEYS.items() if key.machine]
    for number, keys in enumerate(others, 1):
        if differing := differences(first, keys, f"on rank {number}", of_machine):
            raise RunError(
                f"rank {number} has another recipe than rank 0: "
                f"{'; '.join(differing[:_KEYS_SHOWN])}. Use the same recipe on all machines.",
                everywhere=True,
            )


def _end(error: BaseException, rank: int, local_rank: int) -> NoReturn:
    """Report an error and end this process without waiting for threads or collectives.

    Each rank reports errors of its own. To avoid repetition, only local rank 0 reports that another
    rank failed or that the rendezvous failed. Only rank 0 reports an interruption.
    """
    try:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # The exit status must tell the error.
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
