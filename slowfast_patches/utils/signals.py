"""Who handles the signals that ask to stop: the training process, and not what it starts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = [
    "ASKING",
    "BY_HAND_STATUS",
    "EARLY",
    "INTERRUPTED_STATUS",
    "TrainingInterruptedError",
    "held_back",
    "leave_to_parent",
    "listening",
    "stop_if_asked",
]

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C, the end of a job, and the warning that SLURM can send before it. All of them go to every
process of a group or a job."""
INTERRUPTED_STATUS = 75
"""Exit status of an interrupted training that can resume: EX_TEMPFAIL of sysexits.h."""
BY_HAND_STATUS = 130
"""Exit status of a shell for SIGINT."""
EARLY = "stopped by {} before the training began; the same command starts it"


class TrainingInterruptedError(BaseException):
    """The training was asked to stop by a signal, has saved, and goes on when started again.

    It is no Exception, as KeyboardInterrupt is none: a handler raises it anywhere, and libraries
    swallow each Exception in places.
    """

    @property
    def exit_status(self) -> int:
        """75; 0 where torchrun (--max-restarts) would at once start it again."""
        restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
        return INTERRUPTED_STATUS if restarts == "0" else 0


class Listener(Protocol):
    """What notes signals that ask to stop; a `StopRequest`."""

    asked: int


listening: list[Listener] = []
"""Those that note signals now."""


def stop_if_asked(when: str) -> None:
    """Raise TrainingInterruptedError, with `when`, if a signal has asked this process to stop.

    For long work in the main process; `from_main` tells the others. Nothing happens in a program
    that handles signals in its own way.
    """
    for listener in listening:
        if listener.asked:
            name = signal.Signals(listener.asked).name
            raise TrainingInterruptedError(f"stopped by {name} {when}")


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
