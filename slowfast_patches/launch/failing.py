"""How a process ends: with which exit status, and what it says, once for all of a run."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import time
import traceback
from typing import NoReturn

import torch.distributed as dist

from slowfast_patches.launch.stopping import TrainingInterruptedError, TrainingStoppedError
from slowfast_patches.utils.signals import BY_HAND_STATUS, INTERRUPTED_STATUS

__all__ = ["GRACE_SECONDS", "JoiningError", "LostError", "end_process", "exit_status", "report"]

GRACE_SECONDS = 2.0
"""What the other processes of a machine have to end by themselves once one has failed."""
_LOST_SECONDS = 5.0
"""How long a process waits that ends because of another: longer than those that failed."""
_MISTAKE, _BUG = 2, 1


class JoiningError(RuntimeError):
    """The processes of a run did not come together; the message says who or why."""


class LostError(RuntimeError):
    """This process ends because of another, which has failed."""


_MISTAKES = (ValueError, ImportError, OSError, TrainingStoppedError, JoiningError)


def exit_status(error: BaseException) -> int:
    """75 for a training that goes on when started again, 2 for a mistake of the user's or what
    stops a training, 130 for an end by hand, 1 for all else: a bug, or another process's."""
    if isinstance(error, TrainingInterruptedError):
        return 0 if _is_restarted() else INTERRUPTED_STATUS
    if isinstance(error, KeyboardInterrupt):
        return BY_HAND_STATUS
    return _MISTAKE if isinstance(error, _MISTAKES) else _BUG


def report(error: BaseException, who: str = "", *, terminal: bool = True) -> int:
    """Say what ended a run, a bug with its traceback, in the log files and on the terminal.

    `who` is put before it, such as "rank 1". Returns the exit status.
    """
    text = _text(error, f"{who}: " if who else "")
    if terminal:
        sys.stderr.write(text + "\n")  # in one piece: others may write, too
        sys.stderr.flush()
    level = logging.WARNING if isinstance(error, TrainingInterruptedError) else logging.ERROR
    record = logging.LogRecord(__name__, level, __file__, 0, text, None, None)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handle(record)
    return exit_status(error)


def _text(error: BaseException, who: str) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    line = "\n".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])
    if isinstance(error, TrainingInterruptedError):
        return f"interrupted: {line}"
    if _is_lost(error):
        return f"error: {who}another process of the run is lost, which says why: {line}"
    if exit_status(error) == _BUG:
        line = "".join(traceback.format_exception(error)).rstrip()
    return f"error: {who}{line}"


def _is_lost(error: BaseException) -> bool:
    """Whether another process is gone, or does not answer: NCCL has a type for it, gloo a text."""
    return isinstance(error, (LostError, dist.DistError)) or (
        isinstance(error, RuntimeError) and "/gloo/transport/" in str(error)
    )


def end_process(error: BaseException, rank: int, *, first_here: bool) -> NoReturn:
    """End a process of several, whatever its threads and collectives wait for, and its workers.

    Each says its own failure. One that is lost waits first, as who started it ends it meanwhile if
    the failed one is on this machine; if not, the first on the machine speaks.
    """
    interrupted = isinstance(error, (TrainingInterruptedError, KeyboardInterrupt))
    try:
        if _is_lost(error):
            time.sleep(_LOST_SECONDS)
        of_all = _is_lost(error) or isinstance(error, JoiningError)
        speaks = rank == 0 if interrupted else first_here or not of_all
        report(error, f"rank {rank}", terminal=speaks)
        logging.shutdown()
        for child in multiprocessing.active_children():
            child.kill()
    finally:
        os._exit(exit_status(error))


def _is_restarted() -> bool:
    """Whether torchrun (--max-restarts) starts at once again what ends with another status than 0,
    an interrupted training too."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    return "TORCHELASTIC_RUN_ID" in os.environ and restarts != "0"
