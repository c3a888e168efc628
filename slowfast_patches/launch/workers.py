"""The processes of a run of several: started and watched by torchrun's launcher, joined, ended."""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from multiprocessing import resource_tracker
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NoReturn

import torch.distributed as dist

from slowfast_patches.config.recipe import Recipe, differences, keys_of
from slowfast_patches.launch.device import process_device, with_precision
from slowfast_patches.launch.placement import Placement
from slowfast_patches.launch.stopping import EARLY, TrainingInterruptedError, handling
from slowfast_patches.utils.command_line import MISTAKE_STATUS, ToolError, exit_status, report
from slowfast_patches.utils.distributed import World, gathered, wait_for_all
from slowfast_patches.utils.signals import ASKING

__all__ = ["JoiningError", "Main", "start_workers", "work"]

Main = Callable[[Recipe, World], None]

START_METHOD = "spawn"
_LOST_SECONDS = 5.0
"""A rank that lost another ends this much later, unless its launcher ends it before: the rank that
failed reports why."""
_MARGIN = 5.0
"""Seconds that torch has to report by itself that not all have joined in time."""
_LOOK_SECONDS = 1.0
"""How often a rank that waits for others looks whether its launcher lives."""
_KEYS_SHOWN = 16
_OF_A_MACHINE = (
    "SHARD_ID",
    "DATA.PATH_PREFIX",
    "DATA.PATH_TO_DATA_DIR",
    "DATA_LOADER.NUM_WORKERS",
)
"""Keys that machines may differ in: where each has its data, and what reads them."""


class JoiningError(ToolError):
    """The ranks of a run did not meet in time, or have different recipes."""

    exit_status = MISTAKE_STATUS


def start_workers(placement: Placement, recipe: Recipe, main: Main) -> None:
    """Run `work` in a process for each rank of this machine, and wait for them.

    Raises:
        JoiningError: the machines did not meet within DIST_JOIN_SECONDS.
        ToolError: a rank was killed.
        TrainingInterruptedError, KeyboardInterrupt: by a signal, with nothing to save yet.
        SystemExit: a rank failed, which has reported why; with its exit status.
    """
    # A process alone does not import what takes time.
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn"):
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False  # what failed is reported once, by the rank itself or below
    resource_tracker.ensure_running()  # would let SIGINT through, once it starts
    received: list[int] = []
    with (
        TemporaryDirectory(prefix="multigrid-") as folder,
        handling(ASKING, _forward_to(received, folder)),
    ):
        config = LaunchConfig(
            min_nodes=placement.machines,
            max_nodes=placement.machines,
            nproc_per_node=placement.per_machine,
            run_id=os.environ.get("SLURM_JOB_ID", "multigrid"),
            rdzv_backend="static" if placement.address else "c10d",
            rdzv_endpoint=placement.address or "localhost:0",
            rdzv_configs={
                "rank": placement.machine,
                "timeout": math.ceil(recipe.dist_join_seconds),
            },
            local_addr=None if placement.address else "127.0.0.1",
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            max_restarts=0,
            start_method=START_METHOD,
        )
        # In a thread of its own torch leaves the handlers of signals alone, and while it waits for
        # other machines, in C++, this one can still be interrupted.
        ended = _in_thread(lambda: elastic_launch(config, work)(recipe, main))
        try:
            try:
                ended.result(recipe.dist_join_seconds + _MARGIN)
            except TimeoutError:
                if not _started(folder):
                    raise
                ended.result()
        except (dist.DistError, RendezvousError, TimeoutError) as error:
            raise _not_joined(recipe, config.rdzv_endpoint, error) from error
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            _raise_for(failure.exitcode, rank, received)


def _in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Call a function in a daemon thread that holds back SIGINT, also from processes it starts."""
    future: Future[Any] = Future()

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _not_joined(recipe: Recipe, where: str, error: Exception) -> JoiningError:
    reason = str(error).partition("\n")[0] or "no answer"
    return JoiningError(
        f"the processes of this run did not meet at {where} within {recipe.dist_join_seconds:g} s "
        f"(DIST_JOIN_SECONDS): {reason}. It has to be a free port of the first machine"
    )


def _started(folder: str) -> bool:
    """Whether torch has started workers, whose logs it writes there."""
    return bool(os.listdir(folder))


def _forward_to(received: list[int], folder: str) -> Callable[[int, FrameType | None], None]:
    """A handler that passes signals on to the workers, which know how to stop.

    Ctrl-C reaches the whole process group, and a second one ends a training at once: it is passed
    on as SIGTERM, so that it never counts twice.
    """

    def forward(number: int, frame: FrameType | None) -> None:
        workers = multiprocessing.active_children()
        again = number == signal.SIGINT and number in received
        received.append(number)
        for worker in workers:
            worker.kill() if again else worker.terminate()
        if again or not _started(folder):
            _raise_for(-number, 0, received)

    return forward


def _raise_for(code: int, rank: int, received: list[int]) -> NoReturn:
    """Raise what ended a run whose first rank to fail has an exit code, negative for a signal."""
    if -code in ASKING and signal.SIGINT in received:
        raise KeyboardInterrupt
    if -code in ASKING:
        raise TrainingInterruptedError(EARLY.format(signal.Signals(-code).name))
    if code < 0:
        raise ToolError(f"rank {rank} was killed by {signal.Signals(-code).name}")
    raise SystemExit(code)


def work(recipe: Recipe, main: Main) -> None:
    """One rank of several, by the environment variables of torchrun: call `main` in the process
    group. A failure is reported, and ends the process."""
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there is something to save
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        device = process_device(recipe, local_rank)
        _join(recipe)
        try:
            main(recipe, World(rank, dist.get_world_size(), device, local_rank))
        except TrainingInterruptedError:
            wait_for_all()  # the first to end ends those that still write
            raise
        dist.destroy_process_group()
    except BaseException as error:
        _end(error, rank, local_rank)


def _join(recipe: Recipe) -> None:
    """Enter the process group: the only place where a world of several processes is made.

    Raises:
        JoiningError: not all come within DIST_JOIN_SECONDS, or a rank has another recipe; in all.
    """
    seconds = timedelta(seconds=recipe.dist_join_seconds)
    try:
        # In a thread: torch waits for ever for a port that listens and never answers.
        meeting = _in_thread(lambda: next(iter(dist.rendezvous("env://", timeout=seconds))))
        store, rank, size = _met(meeting, recipe.dist_join_seconds + _MARGIN)
    except (dist.DistError, TimeoutError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise _not_joined(recipe, where, error) from error
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        # torchrun's store outlives the processes that it restarts; of several machines,
        # `find_placement` asks for a new one.
        store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    patience = timedelta(seconds=recipe.dist_stall_seconds)
    store.set_timeout(patience)
    backend = recipe.dist_backend
    if backend == "auto":
        backend = "nccl" if recipe.num_gpus > 0 else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
    first, *others = gathered(keys_of(with_precision(recipe, recipe.num_gpus > 0)))
    for number, keys in enumerate(others, 1):
        if differing := differences(first, keys, f"on rank {number}", _OF_A_MACHINE):
            raise JoiningError(
                f"rank {number} has another recipe than rank 0: "
                f"{'; '.join(differing[:_KEYS_SHOWN])}. Give all machines the same"
            )


def _met(meeting: Future[Any], seconds: float) -> Any:
    """Wait for the other ranks, but not without the launcher that would end this one.

    Raises:
        TimeoutError: they have not come.
        JoiningError: the parent of this process has ended.
    """
    parent = os.getppid()
    end = time.monotonic() + seconds
    while True:
        try:
            return meeting.result(min(_LOOK_SECONDS, max(0.0, end - time.monotonic())))
        except TimeoutError:
            if meeting.done() or time.monotonic() >= end:
                raise
        if os.getppid() != parent:
            raise JoiningError("the launcher of this process ended before all ranks had met")


def _end(error: BaseException, rank: int, local_rank: int) -> NoReturn:
    """Report a failure and end this process, whatever its threads and collectives wait for.

    Each rank reports its own failure; the first of each machine reports what all have in common.
    """
    try:
        reports = local_rank == 0 or not isinstance(error, JoiningError)
        if isinstance(error, TrainingInterruptedError):
            reports = rank == 0
        elif _is_lost(error):
            time.sleep(_LOST_SECONDS)
            line = str(error).partition("\n")[0]
            error = ToolError(
                "another rank failed, or did not answer within DIST_STALL_SECONDS; see its log "
                f"({line})"
            )
            reports = local_rank == 0
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # its launcher's, once another has ended
        report(error, f"rank {rank}: ", terminal=reports)
        logging.shutdown()
        for child in multiprocessing.active_children():
            child.kill()
    finally:
        os._exit(exit_status(error))


def _is_lost(error: BaseException) -> bool:
    """Whether another rank is gone or does not answer: NCCL has a type for it, gloo a text."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and "/gloo/transport/" in str(error)
    )
