"""Signals that stop a run. The training process handles them. DataLoader workers ignore them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from slowfast_patches.utils.interruption import STOPPED_BEFORE_START, TrainingInterruptedError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Signals that ask a run to stop: SIGINT by Ctrl-C, SIGTERM at the end of a job, and SIGUSR1 as
SLURM's warning before the end of a job. They are often sent to all processes of a run."""

Handler = Callable[[int, FrameType | None], None]

finished = threading.Event()
"""Set when the result of a run is written. Stop signals are ignored from then on."""


class Listener(Protocol):
    """Interface of an object that receives stop signals, such as a `StopRequest`.

    Attributes:
        asked: Number of the signal received, or 0.
    """

    asked: int


listening: list[Listener] = []
"""Objects that receive stop signals at present."""


def stop_if_asked(when: str) -> None:
    """Raise TrainingInterruptedError if a signal has asked this process to stop.

    Call this regularly during long work in the main process. If the work runs in
    `broadcast_from_main`, all processes raise the error. In a program without a `StopRequest`, this
    does nothing.

    Args:
        when: End of the error message "stopped by SIGTERM ...", such as "while videos are scanned".
    """
    for listener in listening:
        if listener.asked:
            name = signal.Signals(listener.asked).name
            raise TrainingInterruptedError(f"stopped by {name} {when}")


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise TrainingInterruptedError on SIGTERM and SIGUSR1 during the `with` statement.

    Use this while a run is set up. During the training, use `StopRequest`, so that a checkpoint is
    saved. The signals have no effect once the run has `finished`.
    """
    finished.clear()

    def interrupt(number: int, frame: FrameType | None) -> None:
        call_users_handler(number, frame)
        if not finished.is_set():
            raise TrainingInterruptedError(STOPPED_BEFORE_START.format(signal.Signals(number).name))

    with handle_signals({signal.SIGTERM: interrupt, signal.SIGUSR1: interrupt}):
        yield


@contextmanager
def users_handlers() -> Iterator[None]:
    """Call the user's signal handlers as well as ours in the `with` statement, then restore them.

    Use this around a whole run, in the process in which the user's program calls it.
    """
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    _of_user.update({number: old for number, old in before.items() if _is_of_user(old)})
    try:
        yield
    finally:
        _of_user.clear()
        set_handlers(before)


_of_user: dict[int, Any] = {}
"""Signal handlers that the program of the user has set before the run."""


def _is_of_user(handler: Any) -> bool:
    """Return whether a signal handler is neither Python's nor of this package."""
    ours = str(getattr(handler, "__module__", "")).startswith(__package__.split(".")[0])
    return callable(handler) and handler is not signal.default_int_handler and not ours


def call_users_handler(number: int, frame: FrameType | None) -> None:
    """Call the handler of a signal that the program of the user has set before the run, if any."""
    if handler := _of_user.get(number):
        handler(number, frame)


@contextmanager
def handle_signals(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Set signal handlers for the `with` statement, and restore the previous ones after it.

    Outside the main thread, where Python does not allow signal handlers, this does nothing.
    """
    before = set_handlers(handlers)
    try:
        yield
    finally:
        set_handlers(before)


def set_handlers(handlers: Mapping[signal.Signals, Any]) -> dict[signal.Signals, Any]:
    """Set signal handlers, and return the previous ones."""
    in_main = threading.current_thread() is threading.main_thread()
    return {number: signal.signal(number, handlers[number]) for number in handlers if in_main}


@contextmanager
def block_signals(numbers: Collection[signal.Signals] = STOP_SIGNALS) -> Iterator[None]:
    """Block signals in this thread during the `with` statement.

    Processes started in the body inherit the blocked signals and keep them blocked.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_to_parent(worker: int) -> None:
    """Ignore stop signals in a DataLoader worker, except a SIGTERM sent by the parent process.

    Use this as `worker_init_fn`. Stop signals are often sent to all processes of a run. If they
    killed a worker, the training would fail before it could save a checkpoint. A SIGTERM from the
    parent must end the worker, because this is how torch ends workers.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
