"""Stop signals, which the training process handles and DataLoader workers ignore."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Signals that ask a run to stop: Ctrl-C, the end of a job, and a warning of SLURM before the end.
They are often sent to all processes of a group or job."""
INTERRUPTED_STATUS = 75
"""Exit status of an interrupted training that can be resumed (EX_TEMPFAIL of sysexits.h)."""
BY_HAND_STATUS = 130
"""Exit status for Ctrl-C, as shells have it."""
EARLY = "stopped by {} before the training began. Repeat the command to start it."


class TrainingInterruptedError(BaseException):
    """Error raised when a training has saved and stopped because of a signal. It can be resumed.

    Like KeyboardInterrupt, it is not an Exception. A signal handler may raise it anywhere, and it
    must not be caught by a broad `except Exception` of a library.
    """

    @property
    def exit_status(self) -> int:
        """Exit status 75, or 0 under torchrun --max-restarts, which restarts any other status."""
        restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
        return INTERRUPTED_STATUS if restarts == "0" else 0


class Listener(Protocol):
    """Protocol of an object that notes stop signals, such as a `StopRequest`."""

    asked: int


listening: list[Listener] = []
"""Listeners that note stop signals now."""


def stop_if_asked(when: str) -> None:
    """Raise TrainingInterruptedError if a signal has asked this process to stop.

    Call this during long work in the main process. `broadcast_from_main` tells the other
    processes. It has no effect in a program that handles signals itself.

    Args:
        when: End of the message, such as "while videos are scanned".
    """
    for listener in listening:
        if listener.asked:
            name = signal.Signals(listener.asked).name
            raise TrainingInterruptedError(f"stopped by {name} {when}")


@contextmanager
def block_signals(numbers: Collection[signal.Signals] = STOP_SIGNALS) -> Iterator[None]:
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
