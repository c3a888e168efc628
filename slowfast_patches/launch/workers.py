"""Processes of a run on several ranks: start, rendezvous, failures and end."""

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

from slowfast_patches.config.extensions import import_modules
from slowfast_patches.config.recipe import Recipe, differences, values_by_key
from slowfast_patches.launch.device import process_device
from slowfast_patches.launch.placement import Placement
from slowfast_patches.launch.stopping import EARLY, TrainingInterruptedError, handle_signals
from slowfast_patches.utils.command_line import MISTAKE_STATUS, ToolError, exit_status, report
from slowfast_patches.utils.distributed import World, gather_objects, wait_for_all
from slowfast_patches.utils.signals import STOP_SIGNALS

Main = Callable[[Recipe, World], None]

START_METHOD = "spawn"
_LOST_SECONDS = 5.0
"""Seconds that a rank waits before it reports the loss of another rank, which reports the cause."""
_MARGIN = 5.0
"""Seconds after the join timeout in which torch should report it by itself."""
_LOOK_SECONDS = 1.0
"""Seconds between checks whether the launcher of a rank that joins still lives."""
_KEYS_SHOWN = 16
_OF_A_MACHINE = (
    "SHARD_ID",
    "DATA.PATH_PREFIX",
    "DATA.PATH_TO_DATA_DIR",
    "DATA_LOADER.NUM_WORKERS",
)
"""Keys that may differ between machines: where the data is, and how it is loaded."""


class JoiningError(ToolError):
    """Error raised when the rendezvous fails or the ranks have different recipes."""

    exit_status = MISTAKE_STATUS


def start_workers(placement: Placement, recipe: Recipe, main: Main) -> None:
    """Run `work` in a process for each rank of this machine, and wait for them.

    Raises:
        JoiningError: The rendezvous failed within DIST_JOIN_SECONDS.
        ToolError: A rank was killed.
        TrainingInterruptedError: A signal came before there was something to save.
        KeyboardInterrupt: Ctrl-C came before there was something to save.
        SystemExit: A rank failed and has reported why. The status is that of the rank.
    """
    # Lazy imports: they are slow, and a single process does not need them.
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn"):
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False  # Failures are reported once, by the rank or below.
    resource_tracker.ensure_running()  # Starting it later would unblock SIGINT.
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
        # Outside the main thread, torch keeps the signal handlers, and this process can be
        # interrupted while torch waits in C++ for other machines.
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
    """Call a function in a daemon thread. SIGINT is blocked in it and in processes it starts."""
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
        f"(DIST_JOIN_SECONDS): {reason}. The address must be a free port of the first machine."
    )


def _started(folder: str) -> bool:
    """Return whether torch has started workers, which write their logs to `folder`."""
    return bool(os.listdir(folder))


def _forward_to(received: list[int], folder: str) -> Callable[[int, FrameType | None], None]:
    """Return a signal handler that forwards stop signals to the workers as SIGTERM.

    Ctrl-C reaches the workers directly, too, and a second SIGINT would end them immediately. A
    forwarded SIGINT must therefore not count as the second one.
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
    """Raise the error for the exit code of the first failed rank; negative for a signal."""
    if -code in STOP_SIGNALS and signal.SIGINT in received:
        raise KeyboardInterrupt
    if -code in STOP_SIGNALS:
        raise TrainingInterruptedError(EARLY.format(signal.Signals(-code).name))
    if code < 0:
        raise ToolError(f"rank {rank} was killed by {signal.Signals(-code).name}")
    raise SystemExit(code)


def work(recipe: Recipe, main: Main) -> None:
    """Run `main` as one rank, described by torchrun's environment variables.

    If it fails, report the failure and end the process.
    """
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Until there is something to save.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        import_modules(recipe.imports)  # A started process has not loaded the recipe itself.
        device = process_device(recipe, local_rank)
        _join(recipe)
        try:
            main(recipe, World(rank, dist.get_world_size(), device, local_rank))
        except TrainingInterruptedError:
            wait_for_all()  # The first to end ends those that still write.
            raise
        dist.destroy_process_group()
    except BaseException as error:
        _end(error, rank, local_rank)


def _join(recipe: Recipe) -> None:
    """Join the process group, and compare the recipes of all ranks.

    Raises:
        JoiningError: The rendezvous failed within DIST_JOIN_SECONDS, or recipes differ. All ranks
            raise it.
    """
    seconds = timedelta(seconds=recipe.dist_join_seconds)
    try:
        # In a thread, because torch waits forever for a port that listens but never answers.
        meeting = _in_thread(lambda: next(iter(dist.rendezvous("env://", timeout=seconds))))
        store, rank, size = _met(meeting, recipe.dist_join_seconds + _MARGIN)
    except (dist.DistError, TimeoutError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise _not_joined(recipe, where, error) from error
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        # On one machine, torchrun's store outlives restarted processes. On several machines,
        # `find_placement` requires a new store.
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
                f"{'; '.join(differing[:_KEYS_SHOWN])}. Use the same on all machines."
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
    """Report a failure and end this process without waiting for threads or collectives.

    Each rank reports its own failure. Only the first rank of a machine reports the loss of another
    rank or a failed rendezvous, and only rank 0 reports an interruption.
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
        signal.signal(
            signal.SIGTERM, signal.SIG_IGN
        )  # The launcher sends it when another rank has ended.
        report(error, f"rank {rank}: ", terminal=reports)
        logging.shutdown()
        for child in multiprocessing.active_children():
            child.kill()
    finally:
        os._exit(exit_status(error))


def _is_lost(error: BaseException) -> bool:
    """Return whether another rank is lost. NCCL has an error type for this, gloo only a text."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and "/gloo/transport/" in str(error)
    )
