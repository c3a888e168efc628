"""Stop signals, which the training process handles and DataLoader workers ignore."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

__all__ = ["BY_HAND_STATUS", "INTERRUPTED_STATUS", "STOP_SIGNALS", "held_back", "leave_to_parent"]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Signals that ask a run to stop: Ctrl-C, the end of a job, and a warning of SLURM before the end.
They are often sent to all processes of a group or job."""
INTERRUPTED_STATUS = 75
"""Exit status of an interrupted training that can be resumed (EX_TEMPFAIL of sysexits.h)."""
BY_HAND_STATUS = 130
"""Exit status for Ctrl-C, as shells have it."""


@contextmanager
def held_back(numbers: Collection[signal.Signals] = STOP_SIGNALS) -> Iterator[None]:
    """Context manager: block signals in this thread, and permanently in processes it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_to_parent(worker: int) -> None:
    """Ignore stop signals other than SIGTERM from the parent, as `worker_init_fn` of a DataLoader.

    A worker that dies of a signal to the whole group would end the training before it has saved.
    torch and multiprocessing end their workers by a SIGTERM from the parent.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
