"""Keep stop signals away from DataLoader workers: the training process handles them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

__all__ = ["ASKING", "BY_HAND_STATUS", "INTERRUPTED_STATUS", "held_back", "leave_to_parent"]

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C, the end of a job, and the warning that SLURM can send before it. All of them go to every
process of a group or a job."""
INTERRUPTED_STATUS = 75
"""Exit status of an interrupted training that can resume: EX_TEMPFAIL of sysexits.h."""
BY_HAND_STATUS = 130
"""Exit status of a shell for SIGINT."""


@contextmanager
def held_back(numbers: Collection[signal.Signals] = ASKING) -> Iterator[None]:
    """Block the signals in this thread, and for good in processes that the body starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_to_parent(worker: int) -> None:
    """A DataLoader's worker_init_fn: ignore stop signals but SIGTERM from the parent.

    A worker that died of a signal to all would end the training before it has saved. The parent's
    SIGTERM is how torch and multiprocessing end their workers.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
