"""Run `main` in several ranks: start the processes, join the process group, and report failures."""

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

from slowfast_patches.config.imports import import_modules
from slowfast_patches.config.recipe import Recipe, differences, values_by_key
from slowfast_patches.launch.device import process_device
from slowfast_patches.launch.placement import Placement
from slowfast_patches.launch.stopping import EARLY, TrainingInterruptedError, handle_signals
from slowfast_patches.utils.command_line import MISTAKE_STATUS, ToolError, exit_status, report
from slowfast_patches.utils.distributed import World, gather_objects, wait_for_all
from slowfast_patches.utils.signals import STOP_SIGNALS, finished

Main = Callable[[Recipe, World], None]

START_METHOD = "spawn"
_LOST_SECONDS = 5.0
"""Seconds that a rank waits before it reports that another rank failed.

In this time, the failed rank can report the cause.
"""
_MARGIN = 5.0
"""Seconds after DIST_JOIN_SECONDS in which torch should raise a timeout error itself."""
_LOOK_SECONDS = 1.0
"""Interval in seconds at which a rank checks during the rendezvous that its launcher is running."""
_KEYS_SHOWN = 16
_OF_A_MACHINE = (
    "SHARD_ID",
    "DATA.PATH_PREFIX",
    "DATA.PATH_TO_DATA_DIR",
    "DATA_LOADER.NUM_WORKERS",
)
"""Config keys that may differ between machines, such as the path of the data."""


class JoiningError(ToolError):
    """Error raised when the rendezvous fails or the ranks have different recipes."""

    exit_status = MISTAKE_STATUS


def start_workers(placement: Placement, recipe: Recipe, main: Main) -> None:
    """Run `work` in one process for each rank of this machine, and wait until all have ended.

    Raises:
        JoiningError: The ranks did not meet within DIST_JOIN_SECONDS.
        ToolError: A rank was killed by a signal.
        TrainingInterruptedError: A stop signal was received before the training began.
        KeyboardInterrupt: Ctrl-C was pressed before the training began.
        SystemExit: A rank failed and has reported the error. The exit status is that of the rank.
    """
    # Import these modules only here, because they load slowly and a single process needs none.
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn"):
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False  # torch must not log failures that are reported elsewhere.
    resource_tracker.ensure_running()  # Start it now, because starting it unblocks SIGINT.
    received: list[int] = []
    with (
        TemporaryDirectory(prefix="multigrid-") as folder,
        handle_signals(STOP_SIGNALS, _forward_to(received, folder)),
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
        # In a thread, torch's launcher does not replace the signal handlers of this process.
        # The main thread can handle signals even while torch waits in C++ for other machines.
        ended = _in_thread(lambda: elastic_launch(config, work)(recipe, main))
        try:
            try:
                ended.result(recipe.dist_join_seconds + _MARGIN)
            except TimeoutError:
                if not _started(folder):
                    raise
                ended.result()
            finished.set()
        except (dist.DistError, RendezvousError, TimeoutError) as error:
            raise _not_joined(recipe, config.rdzv_endpoint, error) from error
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            _raise_for(failure.exitcode, rank, received)


def _in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Call a function in a daemon thread, and return the future result.

    SIGINT is blocked in the thread and in all processes that the thread starts.
    """
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
        f"the processes of this run did not meet at {where} within DIST_JOIN_SECONDS "
        f"({recipe.dist_join_seconds:g} s): {reason}. Check that the address is a free port of the "
        "first machine."
    )


def _started(folder: str) -> bool:
    """Return whether torch has started workers. Workers write their logs to `folder`."""
    return bool(os.listdir(folder))


def _forward_to(received: list[int], folder: str) -> Callable[[int, FrameType | None], None]:
    """Return a signal handler that forwards stop signals to the workers as SIGTERM.

    A terminal sends the SIGINT of Ctrl-C to the workers as well. If this handler forwarded it as
    SIGINT, the workers would receive SIGINT twice, which ends them without saving.

    Args:
        received: List to which the handler appends the numbers of the signals.
        folder: Folder to which workers write their logs.
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
    """Raise the error that describes how the first failed rank ended.

    Args:
        code: Exit status of the rank. If a signal killed the rank, the negative signal number.
        rank: The rank that failed first.
        received: Numbers of the signals that this process received.
    """
    if -code in STOP_SIGNALS and signal.SIGINT in received:
        raise KeyboardInterrupt
    if -code in STOP_SIGNALS:
        raise TrainingInterruptedError(EARLY.format(signal.Signals(-code).name))
    if code < 0:
        name = signal.Signals(-code).name
        advice = ". The machine may be out of memory" if name == "SIGKILL" else ""
        raise ToolError(f"rank {rank} was killed by {name}{advice}")
    raise SystemExit(code)


def work(recipe: Recipe, main: Main) -> None:
    """Join the process group as the rank given by torchrun's environment variables, and run `main`.

    If `main` fails, report the error and end the process.
    """
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the process until training begins.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        import_modules(recipe.imports)  # Spawned processes have not imported these modules yet.
        device = process_device(recipe, local_rank)
        _join(recipe)
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


def _join(recipe: Recipe) -> None:
    """Join the process group, and check that all ranks have the same recipe.

    Raises:
        JoiningError: The ranks did not meet within DIST_JOIN_SECONDS, or their recipes differ. All
            ranks raise this error.
    """
    seconds = timedelta(seconds=recipe.dist_join_seconds)
    try:
        # Use a thread, because torch ignores its timeout if the port is open but never answers.
        meeting = _in_thread(lambda: next(iter(dist.rendezvous("env://", timeout=seconds))))
        store, rank, size = _met(meeting, recipe.dist_join_seconds + _MARGIN)
    except (dist.DistError, TimeoutError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise _not_joined(recipe, where, error) from error
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
    for number, keys in enumerate(others, 1):
        if differing := differences(first, keys, f"on rank {number}", _OF_A_MACHINE):
            raise JoiningError(
                f"rank {number} has another recipe than rank 0: "
                f"{'; '.join(differing[:_KEYS_SHOWN])}. Use the same recipe on all machines."
            )


def _met(meeting: Future[Any], seconds: float) -> Any:
    """Wait for the rendezvous of all ranks, as long as the launcher of this process is running.

    Args:
        meeting: Future result of the rendezvous.
        seconds: Timeout in seconds.

    Returns:
        Result of the rendezvous.

    Raises:
        TimeoutError: The rendezvous did not succeed in time.
        JoiningError: The launcher has ended.
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
            raise JoiningError("the launcher of this process ended before all ranks had joined")


def _end(error: BaseException, rank: int, local_rank: int) -> NoReturn:
    """Report an error and end this process without waiting for threads or collectives.

    Each rank reports errors of its own. To avoid repetition, only local rank 0 reports that another
    rank failed or that the rendezvous failed. Only rank 0 reports an interruption.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # The exit status must tell the error.
    try:
        reports = local_rank == 0 or not isinstance(error, JoiningError)
        if isinstance(error, TrainingInterruptedError):
            reports = rank == 0
        elif _is_lost(error):
            time.sleep(_LOST_SECONDS)
            line = str(error).partition("\n")[0]
            error = ToolError(
                "another rank failed, or did not answer within DIST_STALL_SECONDS. See the log of "
                f"that rank. The error of this rank is: {line}"
            )
            reports = local_rank == 0
        # Ignore the SIGTERM that the launcher sends after another rank has ended.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        report(error, f"rank {rank}: ", terminal=reports)
        logging.shutdown()
        for child in multiprocessing.active_children():
            child.kill()
    finally:
        os._exit(exit_status(error))


def _is_lost(error: BaseException) -> bool:
    """Return whether an error means that the connection to another rank was lost.

    NCCL raises DistError. gloo raises RuntimeError, which is recognized by its message.
    """
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and "/gloo/transport/" in str(error)
    )
